"""The store in etcd: `EtcdStore` in `store`, and what it stands on.

meeting    the schemes etcd:// and etcds://
place      where etcd is, and who this process is to it
words      its JSON
refusals   its errors
gateway    requests that are tried again
run        what a job leaves there, from its first process to its last
ledger     changes that happen once
waiting    waiting for a key
watching   watches
rounds     gathers
alive      whether a process of this host is dead
"""
