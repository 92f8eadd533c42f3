#!/bin/sh
# ssh, as far as `aiodist launch` uses it, to this very host: options, a host, a command. Nothing of the caller's
# environment is handed on. Some hosts are not well.
for word; do host=$command; command=$word; done
case $host in
*closed) echo 'user@closed: Permission denied (publickey,password).' >&2; exit 255 ;;
*gone) echo 'ssh: connect to host gone port 22: Connection refused' >&2; exit 255 ;;
*nobody) echo 'ssh: Could not resolve hostname nobody: Name or service not known' >&2; exit 255 ;;
*changed) echo 'Host key verification failed.' >&2; exit 255 ;;
*bare) command=$(echo "$command" | sed 's/ -u / -S -u /') ;;
*old) command="exec $OLD_AGENT" ;;
*silent) command='sleep 1000' ;;
*lingering) sleep 1000 & echo "left $!" >&2 ;;
esac
cd /
printf 'a login shell says something on %s' "$host"
exec env -i HOME="$HOME" PATH="$PATH" SSH_CONNECTION='127.0.0.1 5 127.0.0.1 22' sh -c "$command"
