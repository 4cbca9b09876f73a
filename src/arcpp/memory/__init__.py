"""Memory arithmetic of the hosts: KV cache, recurrent state, workspace. One file per host."""
