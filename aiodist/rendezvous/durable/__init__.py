"""What a store server keeps on disk: a log that is synced before any answer, snapshots, and whose they are.

`journal` is the bytes, `disk` the files of one store, `committer` syncs many requests at once, `data_folder`
is the folder of a whole server.
"""
