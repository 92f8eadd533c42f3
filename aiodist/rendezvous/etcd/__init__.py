"""What `EtcdStore` stands on: where etcd is, its JSON, requests that are tried again, runs, exactly once."""
