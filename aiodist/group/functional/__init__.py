"""The module-level calls, with torch.distributed's names and signatures.

A thin shell: each finds its group (the loop's default where `group` is None), translates global ranks to
the group's, and calls the method of the same name. `src` and `dst` are global ranks here, as in torch;
`group_src` and `group_dst` are the group's. Every call returns a started `Work` to await.
Errors are those that `ProcessGroup` names; tensors and lists are borrowed until the Work is done.

On a process that is no member of `group` a call warns, does nothing and gives None.
"""
