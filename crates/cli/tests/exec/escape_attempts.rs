//! The attempts of `escapes`: commands, and at which level they must fail.

/// Where an attempt must fail.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    Everywhere,
    /// The Landlock level does not promise it, and the record says so.
    AtFullOnly,
    /// Neither level prevents it: it is about what the host does later with new files.
    Nowhere,
}

use Kept::{AtFullOnly, Everywhere, Nowhere};

/// Name, commands of bash, where it must fail. The environment is in variables; see `Arena` in `escapes`.
pub(crate) const ATTEMPTS: &[(&str, &str, Kept)] = &[
    ("write-outside", "echo x>>$OUT/.bashrc", Everywhere),
    ("dotdot", "touch $PROJ/../outside/new2", Everywhere),
    ("through-link", "touch link/new3", Everywhere),
    (
        "own-symlink-race",
        "for i in $(seq 50);do ln -sfn $TMPDIR l; (echo x>l/new4)& ln -sfn $OUT l; echo x>l/new4;done 2>/dev/null;wait",
        Everywhere,
    ),
    ("rename-in", "mv $OUT/exec.sh $PROJ/stolen", Everywhere),
    ("rename-out", "echo x>f; mv f $OUT/new5", Everywhere),
    ("hardlink-out", "ln $OUT/exec.sh hl && echo x>>hl", Everywhere),
    (
        "truncate",
        "/usr/bin/python3 -c 'import os;os.truncate(os.environ[\"OUT\"]+\"/.bashrc\",0)'",
        Everywhere,
    ),
    ("utime-outside", "touch -d 2001-01-01 $OUT/exec.sh", AtFullOnly),
    ("chmod-outside", "chmod 777 $OUT/exec.sh", AtFullOnly),
    ("unlink-outside", "rm -f $OUT/.bashrc", Everywhere),
    ("mkdir-outside", "mkdir $OUT/d", Everywhere),
    ("inherited-directory", "touch /proc/self/fd/8/new6", Everywhere),
    ("inherited-rw-fd", "/usr/bin/python3 -c 'import os;os.pwrite(9,b\"X\",0)'", Everywhere),
    ("proc-parent-root", "touch /proc/$PPID/root$OUT/new7 /proc/1/root$OUT/new7", Everywhere),
    ("proc-parent-cwd", "cd /proc/$PPID/cwd && touch .$OUT/new8", Everywhere),
    ("mknod-dev", "mknod d b 254 0 && head -c1 d >/dev/null && echo ESCAPED", Everywhere),
    (
        "raw-disk",
        "for d in /dev/vda /dev/sda /dev/nvme0n1 /dev/mem; do head -c1 $d >/dev/null 2>&1 && echo ESCAPED; done",
        Everywhere,
    ),
    ("read-secret", "cat $SEC/id", Everywhere),
    ("read-secret-symlink", "ln -sf $SEC/id k; cat k", Everywhere),
    ("read-secret-hardlink", "ln $SEC/id k2; cat k2", Everywhere),
    ("read-secret-victimroot", "cat /proc/$VPID/root$SEC/id", Everywhere),
    ("read-secret-mvparent", "mv $OUT $OUT.2; cat $OUT.2/.ssh/id; mv $OUT.2 $OUT", Everywhere),
    ("write-secret", "echo x>>$SEC/id; echo x>$SEC/new", Everywhere),
    (
        "parent-environ-maps",
        "for p in /proc/[0-9]*; do tr '\\0' '\\n' <$p/environ 2>/dev/null; done | grep -a VICTIM",
        Everywhere,
    ),
    (
        "ptrace-victim",
        "/usr/bin/python3 -c 'import ctypes,os;l=ctypes.CDLL(None);print(\"ESCAPED\" if l.ptrace(16,int(os.environ[\"VPID\"]),0,0)==0 else \"no\")'",
        Everywhere,
    ),
    (
        "ptrace-keeper",
        "/usr/bin/python3 -c 'import ctypes,sys;l=ctypes.CDLL(None);print(\"ESCAPED\" if l.ptrace(16,int(sys.argv[1]),0,0)==0 else \"no\")' $PPID; (exec 3</proc/$PPID/mem) && echo ESCAPED",
        Everywhere,
    ),
    (
        "process_vm_readv",
        "/usr/bin/python3 -c 'import os,ctypes;l=ctypes.CDLL(None,use_errno=True);p=int(os.environ[\"VPID\"]);b=ctypes.create_string_buffer(4);V=ctypes.c_void_p;I=type(\"I\",(ctypes.Structure,),{\"_fields_\":[(\"b\",V),(\"l\",ctypes.c_size_t)]});m=int(open(f\"/proc/{p}/maps\").readline().split(\"-\")[0],16);r=l.process_vm_readv(p,ctypes.byref(I(ctypes.addressof(b),4)),1,ctypes.byref(I(m,4)),1,0);print(\"ESCAPED\" if r==4 else r)'",
        Everywhere,
    ),
    ("kill-victim", "kill -9 $VPID", Everywhere),
    (
        "outlive",
        "setsid nohup bash -c \"sleep .6; touch $PROJ/outlived\" >/dev/null 2>&1 & disown; sleep .1",
        Everywhere,
    ),
    ("tcp-host-loopback", "exec 3<>/dev/tcp/127.0.0.1/$TPORT", Everywhere),
    (
        "udp-host-loopback",
        "/usr/bin/python3 -c 'import socket,os;socket.socket(2,2).sendto(b\"x\",(\"127.0.0.1\",int(os.environ[\"UPORT\"])))'",
        Everywhere,
    ),
    (
        "abstract-unix",
        "/usr/bin/python3 -c 'import socket,os;s=socket.socket(1,1);s.connect(\"\\0\"+os.environ[\"ABS\"])'",
        Everywhere,
    ),
    (
        "path-unix",
        "/usr/bin/python3 -c 'import socket,os;s=socket.socket(1,1);s.connect(os.environ[\"USOCK\"])'",
        Everywhere,
    ),
    (
        "path-unix-dgram",
        "/usr/bin/python3 -c 'import socket,os;s=socket.socket(1,2);s.sendto(b\"x\",os.environ[\"DSOCK\"])'",
        Everywhere,
    ),
    (
        "vsock",
        "/usr/bin/python3 -c 'import socket;s=socket.socket(40,1);print(\"ESCAPED\")'",
        Everywhere,
    ),
    (
        "packet",
        "/usr/bin/python3 -c 'import socket;s=socket.socket(17,3);print(\"ESCAPED\")'",
        Everywhere,
    ),
    (
        "io_uring-setup",
        "/usr/bin/python3 -c 'import ctypes;l=ctypes.CDLL(None);b=ctypes.create_string_buffer(256);print(\"ESCAPED\" if l.syscall(425,4,b)>=0 else \"no\")'",
        Everywhere,
    ),
    (
        "bind-over-mask",
        "unshare -Urm sh -c \"mount --rbind / /mnt; cat /mnt$SEC/id; touch /mnt$OUT/new9\"",
        Everywhere,
    ),
    (
        "umount-mask",
        "umount $SEC; umount -l $SEC; mount -o remount,rw /; cat $SEC/id; touch $OUT/new9",
        Everywhere,
    ),
    (
        "new-namespace",
        "unshare -U true && echo ESCAPED; unshare -n true && echo ESCAPED",
        Everywhere,
    ),
    (
        "setuid-binary",
        "grep -q 'NoNewPrivs:.1' /proc/self/status || echo ESCAPED; grep -q 'CapEff:.0000000000000000' /proc/self/status || echo ESCAPED; grep -q 'CapPrm:.0000000000000000' /proc/self/status || echo ESCAPED",
        Everywhere,
    ),
    (
        "tiocsti",
        "script -qec \"/usr/bin/python3 -c \\\"import fcntl;fcntl.ioctl(0,0x5412,b'Q')\\\"\" /dev/null </dev/null 2>/dev/null | grep -q Q && echo ESCAPED",
        Everywhere,
    ),
    (
        "tiocsti-high-bits",
        "/usr/bin/python3 -c 'import ctypes,os,pty;m,s=pty.openpty();l=ctypes.CDLL(None,use_errno=True);l.syscall.restype=ctypes.c_long;print(\"ESCAPED\" if l.syscall(16,s,ctypes.c_ulong(0x100005412),b\"Q\")==0 else \"no\")'",
        Everywhere,
    ),
    ("sysrq-proc", "echo h > /proc/sysrq-trigger && echo ESCAPED", Everywhere),
    (
        "core-pattern",
        "cat /proc/sys/kernel/core_pattern > /proc/sys/kernel/core_pattern && echo ESCAPED",
        Everywhere,
    ),
    (
        "keyring",
        "/usr/bin/python3 -c 'import ctypes;l=ctypes.CDLL(None);print(\"ESCAPED\" if l.syscall(250,0,-4&0xffffffffffffffff,0)>0 else \"no\")'",
        Everywhere,
    ),
    (
        "git-hook",
        "printf '#!/bin/sh\\ntouch %s/new10' $OUT > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit",
        AtFullOnly,
    ),
    (
        "git-hookspath-rename",
        "mv .git .git2 && cp -r .git2 .git && git config core.fsmonitor \"touch $OUT/new12;false\"",
        AtFullOnly,
    ),
    (
        "git-worktree-config",
        "printf '[core]\\n fsmonitor = touch %s/new14;false\\n' $OUT >> .git/config",
        AtFullOnly,
    ),
    (
        "git-replace-dotgit",
        "mv .git .git3; git init -q . ; git config core.fsmonitor \"touch $OUT/new18;false\"",
        AtFullOnly,
    ),
    (
        "git-embedded-repo",
        "git init -q sub && cd sub && git config user.email a@b && git config user.name n && git commit -q --allow-empty -m x && git config core.fsmonitor \"touch $OUT/new16;false\" && cd .. && git add sub && git commit -qm sub",
        Nowhere,
    ),
    // Through /proc, by other names of the same places.
    (
        "proc-self-root",
        "cat /proc/self/root$SEC/id /proc/thread-self/root$SEC/id /proc/self/cwd/../outside/.ssh/id; touch /proc/self/root$OUT/new20",
        Everywhere,
    ),
    (
        "keeper-root-and-descriptors",
        "cat /proc/1/root$SEC/id; ls -l /proc/1/fd /proc/1/cwd | grep -q -- '->' && echo ESCAPED; for f in /proc/1/fd/*; do cat $f; done",
        AtFullOnly,
    ),
    (
        "runner-environ",
        "for p in /proc/[0-9]*; do tr '\\0' '\\n' <$p/environ 2>/dev/null; done | grep -a HOST_TOKEN; env | grep HOST_TOKEN",
        Everywhere,
    ),
    (
        "keeper-memory",
        "/usr/bin/python3 -c 'import os,ctypes;l=ctypes.CDLL(None,use_errno=True);f=l.syscall(434,int(os.popen(\"ps -o ppid= -p $PPID\").read() or 1),0);[print(\"ESCAPED\") for n in range(64) if f>=0 and l.syscall(438,f,n,0)>=0]'",
        Everywhere,
    ),
    (
        "descriptor-of-victim",
        "/usr/bin/python3 -c 'import os,ctypes;l=ctypes.CDLL(None);f=l.syscall(434,int(os.environ[\"VPID\"]),0);print(\"ESCAPED\" if f>=0 and l.syscall(438,f,0,0)>=0 else \"no\")'; ls -l /proc/$VPID/fd/0 2>/dev/null | grep -q -- '->' && echo ESCAPED",
        Everywhere,
    ),
    (
        "namespace-of-victim",
        "/usr/bin/python3 -c 'import os,ctypes;l=ctypes.CDLL(None);\nfor n in (\"user\",\"mnt\",\"net\",\"pid\"):\n  for p in (os.environ[\"VPID\"],\"1\"):\n    try: f=os.open(f\"/proc/{p}/ns/{n}\",0)\n    except OSError: continue\n    print(\"ESCAPED\" if l.syscall(308,f,0)==0 else \"no\")'",
        Everywhere,
    ),
    // Processes outside.
    (
        "signal-by-descriptor",
        "/usr/bin/python3 -c 'import os,fcntl,signal;r,w=os.pipe();fcntl.fcntl(r,8,int(os.environ[\"VPID\"]));fcntl.fcntl(r,10,9);fcntl.fcntl(r,4,0o20000|fcntl.fcntl(r,3));os.write(w,b\"x\")'; sleep .1",
        Everywhere,
    ),
    (
        "signal-by-pidfd",
        "/usr/bin/python3 -c 'import os,signal;signal.pidfd_send_signal(os.pidfd_open(int(os.environ[\"VPID\"])),9)'",
        Everywhere,
    ),
    (
        "limits-of-victim",
        "/usr/bin/python3 -c 'import os,resource;v=int(os.environ[\"VPID\"]);resource.prlimit(v,resource.RLIMIT_NOFILE,(3,3));print(\"ESCAPED\")'",
        Everywhere,
    ),
    (
        "priority-of-victim",
        "/usr/bin/python3 -c 'import os;os.setpriority(os.PRIO_PROCESS,int(os.environ[\"VPID\"]),19);print(\"ESCAPED\")'; /usr/bin/python3 -c 'import os;os.setpriority(os.PRIO_USER,os.getuid(),19);print(os.getpriority(os.PRIO_PROCESS,int(os.environ[\"VPID\"])),\"ESCAPED\")'",
        Everywhere,
    ),
    (
        "scheduling-of-victim",
        "/usr/bin/python3 -c 'import os;os.sched_setaffinity(int(os.environ[\"VPID\"]),{0});print(\"ESCAPED\")'; chrt -b -p 0 $VPID && echo ESCAPED",
        AtFullOnly,
    ),
    (
        "kill-keeper-and-stay",
        "setsid nohup bash -c \"sleep .6; touch $PROJ/outlived\" >/dev/null 2>&1 & disown; kill -9 $PPID 1; sleep .1",
        Everywhere,
    ),
    // Shared memory and messages of processes.
    (
        "sysv-shared-memory",
        "/usr/bin/python3 -c 'import ctypes,os;l=ctypes.CDLL(None,use_errno=True);l.shmat.restype=ctypes.c_void_p;i=l.shmget(int(os.environ[\"SHMKEY\"]),0,0);a=l.shmat(i,None,0) if i>=0 else None;print(ctypes.string_at(a,9) if a and a!=2**64-1 else \"no\")'",
        Everywhere,
    ),
    (
        "posix-message-queue",
        "/usr/bin/python3 -c 'import ctypes,os;l=ctypes.CDLL(None,use_errno=True);n=os.environ[\"ABS\"].encode();q=l.syscall(240,n,os.O_RDONLY|os.O_NONBLOCK,0,None);print(\"ESCAPED\" if q>=0 else \"no\")'",
        Everywhere,
    ),
    ("posix-shared-memory", "cat /dev/shm/$ABS", Everywhere),
    // Sockets.
    (
        "abstract-unix-dgram",
        "/usr/bin/python3 -c 'import socket,os;s=socket.socket(1,2);s.sendto(b\"x\",\"\\0\"+os.environ[\"ABS\"]+\"-dgram\")'",
        Everywhere,
    ),
    (
        "unix-through-link",
        "ln -s $USOCK s; ln $USOCK h; /usr/bin/python3 -c 'import socket\nfor n in \"s\",\"h\",\"/proc/self/cwd/../outside/stream\":\n  try: socket.socket(1,1).connect(n)\n  except OSError: pass'",
        Everywhere,
    ),
    (
        "other-families",
        "/usr/bin/python3 -c 'import socket\nfor f in range(3,46):\n  if f in (10,16): continue\n  for k in 1,2,3,5:\n    try: socket.socket(f,k); print(\"ESCAPED\",f)\n    except OSError: pass'",
        Everywhere,
    ),
    (
        "multipath-tcp",
        "/usr/bin/python3 -c 'import socket,os;s=socket.socket(2,1,262);s.connect((\"127.0.0.1\",int(os.environ[\"TPORT\"])))'",
        Everywhere,
    ),
    // Mounts and namespaces by system calls.
    (
        "mount-calls",
        "/usr/bin/python3 -c 'import ctypes;l=ctypes.CDLL(None)\nfor n,a in ((165,(b\"none\",b\"/mnt\",b\"tmpfs\",0,0)),(430,(b\"tmpfs\",0)),(428,(-100,b\"/\",1)),(467,(-100,b\"/\",1,0,0)),(155,(b\".\",b\".\")),(161,(b\".\",)),(272,(0x10000000,)),(272,(0x20000,)),(166,(b\"/proc\",2)),(442,(-100,b\"/\",0x8000,b\"\\0\"*32,32))):\n  print(\"ESCAPED\" if l.syscall(n,*a)>=0 else \"no\",n)' | grep ESCAPED",
        Everywhere,
    ),
    (
        "clone-into-namespaces",
        "/usr/bin/python3 -c 'import ctypes,os;l=ctypes.CDLL(None)\nfor f in (0x10000000,0x20000,0x40000000,0x20000000,0x08000000,0x02000000,0x04000000):\n  p=l.syscall(56,f|17,0,0,0,0)\n  if p==0: os._exit(0)\n  print(\"ESCAPED\" if p>0 else \"no\")' | grep ESCAPED",
        Everywhere,
    ),
    (
        "kernel-calls",
        "/usr/bin/python3 -c 'import ctypes;l=ctypes.CDLL(None);b=ctypes.create_string_buffer(4096)\nfor n,a in ((321,(0,b,120)),(298,(b,0,-1,-1,0)),(323,(0,)),(304,(-100,b,0)),(248,(b\"user\",b\"x\",b\"y\",1,-4)),(249,(b\"user\",b\"x\",0,0)),(246,(0,0,0,0)),(320,(0,0,0,0,0)),(103,(3,b,4096)),(163,(0,)),(169,(0xfee1dead,672274793,0,0)),(170,(b\"x\",1)),(171,(b\"x\",1))):\n  print(\"ESCAPED\" if l.syscall(n,*a)>=0 else \"no\",n)' | grep ESCAPED",
        Everywhere,
    ),
    // What the kernel executes or allows for every user.
    (
        "kernel-settings",
        "for f in /proc/sys/kernel/modprobe /proc/sys/kernel/hotplug /proc/sys/vm/overcommit_memory /proc/sys/net/ipv4/ip_forward /sys/kernel/uevent_helper /proc/sys/fs/binfmt_misc/register /sys/power/state /proc/sys/kernel/ns_last_pid /sys/fs/cgroup/cgroup.procs; do [ -e $f ] && (cat $f >/dev/null 2>&1; cat $f > $f) 2>/dev/null && echo ESCAPED $f; done; mkdir /sys/fs/cgroup/escaped 2>/dev/null && rmdir /sys/fs/cgroup/escaped && echo ESCAPED",
        Everywhere,
    ),
    (
        "devices",
        "for d in /dev/kmsg /dev/mem /dev/port /dev/fuse /dev/kvm /dev/net/tun /dev/loop-control /dev/loop0; do (exec 3<$d) 2>/dev/null && echo ESCAPED $d; done",
        Everywhere,
    ),
    (
        "crontab",
        "echo \"* * * * * touch $OUT/new21\" | crontab - && echo ESCAPED; echo x > /var/spool/cron/x && echo ESCAPED; echo x > /etc/cron.d/x && echo ESCAPED",
        Everywhere,
    ),
    // Attributes and locks of files outside.
    (
        "xattr-outside",
        "/usr/bin/python3 -c 'import os;os.setxattr(os.environ[\"OUT\"]+\"/exec.sh\",\"user.x\",b\"1\");print(\"ESCAPED\")'",
        AtFullOnly,
    ),
    (
        "chattr-outside",
        "/usr/bin/python3 -c 'import os,fcntl,struct;f=os.open(os.environ[\"OUT\"]+\"/exec.sh\",0);fcntl.ioctl(f,0x40086602,struct.pack(\"l\",0x40));print(\"ESCAPED\")'",
        AtFullOnly,
    ),
    ("chown-outside", "chown $(id -u):$(id -g) $OUT/exec.sh && echo ESCAPED", AtFullOnly),
    (
        "truncate-by-open",
        "/usr/bin/python3 -c 'import os;os.open(os.environ[\"OUT\"]+\"/.bashrc\",os.O_RDONLY|os.O_TRUNC)'",
        Everywhere,
    ),
    (
        "exchange-out",
        "echo mine > f; /usr/bin/python3 -c 'import ctypes,os;l=ctypes.CDLL(None);print(l.syscall(316,-100,b\"f\",-100,(os.environ[\"OUT\"]+\"/exec.sh\").encode(),2))'",
        Everywhere,
    ),
    (
        "temporary-link-out",
        "/usr/bin/python3 -c 'import os;f=os.open(\".\",os.O_TMPFILE|os.O_RDWR);os.link(f\"/proc/self/fd/{f}\",os.environ[\"OUT\"]+\"/new22\",follow_symlinks=True)'",
        Everywhere,
    ),
    (
        "copy-range-out",
        "echo mine>f; /usr/bin/python3 -c 'import os;a=os.open(\"f\",0);b=os.open(os.environ[\"OUT\"]+\"/.bashrc\",os.O_WRONLY);os.copy_file_range(a,b,5)'",
        Everywhere,
    ),
    (
        "map-shared-outside",
        "/usr/bin/python3 -c 'import mmap,os;f=os.open(os.environ[\"OUT\"]+\"/.bashrc\",os.O_RDONLY);m=mmap.mmap(f,0,mmap.MAP_SHARED,mmap.PROT_READ|mmap.PROT_WRITE);m[0]=88'",
        Everywhere,
    ),
    // Other ways to the names of the hidden directory.
    ("secret-through-move", "mv $SEC $PROJ/s; cat s/id; mv $OUT/.ssh/id x; cat x", Everywhere),
    (
        "secret-by-archive",
        "tar cf - -C $OUT .ssh 2>/dev/null | tar xOf - 2>/dev/null; cp -a $SEC c; cat c/id",
        Everywhere,
    ),
    (
        "secret-by-git",
        "git hash-object -w $SEC/id && git cat-file -p $(git hash-object $SEC/id); git --git-dir=$SEC log; git diff --no-index /dev/null $SEC/id",
        Everywhere,
    ),
    // git: what the host's own git would execute afterwards.
    (
        "git-config-command",
        "git config core.fsmonitor \"touch $OUT/new23;false\"; git config --local alias.status '!touch $OUT/new23'",
        AtFullOnly,
    ),
    (
        "git-config-rename-over",
        "printf '[core]\\n fsmonitor = touch %s/new24;false\\n' $OUT > c; mv -f c .git/config; cp c .git/config",
        AtFullOnly,
    ),
    (
        "git-config-exchange",
        "cp .git/config c; printf '[core]\\n fsmonitor = touch %s/new25;false\\n' $OUT >> c; /usr/bin/python3 -c 'import ctypes;ctypes.CDLL(None).syscall(316,-100,b\"c\",-100,b\".git/config\",2)'",
        AtFullOnly,
    ),
    (
        "git-config-unlink",
        "rm -f .git/config .git/hooks/*; rm -rf .git/hooks; mkdir .git/hooks; printf '#!/bin/sh\\ntouch %s/new26' $OUT > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit",
        AtFullOnly,
    ),
    (
        "git-hooks-moved",
        "mkdir h; printf '#!/bin/sh\\ntouch %s/new27' $OUT > h/pre-commit; chmod +x h/pre-commit; mv .git/hooks .git/old; mv h .git/hooks; ln -sfn $PROJ/h .git/hooks",
        AtFullOnly,
    ),
    (
        "git-hooks-exchange",
        "mkdir h; printf '#!/bin/sh\\ntouch %s/new28' $OUT > h/pre-commit; chmod +x h/pre-commit; /usr/bin/python3 -c 'import ctypes;ctypes.CDLL(None).syscall(316,-100,b\"h\",-100,b\".git/hooks\",2)'",
        AtFullOnly,
    ),
    (
        "git-dir-exchange",
        "cp -r .git g; printf '[core]\\n fsmonitor = touch %s/new29;false\\n' $OUT >> g/config; /usr/bin/python3 -c 'import ctypes;ctypes.CDLL(None).syscall(316,-100,b\"g\",-100,b\".git\",2)'",
        AtFullOnly,
    ),
    (
        "git-file-instead-of-directory",
        "cp -r .git g; printf '[core]\\n fsmonitor = touch %s/new30;false\\n' $OUT >> g/config; rm -rf .git; echo 'gitdir: g' > .git; ln -sfn g .git",
        AtFullOnly,
    ),
    (
        "git-attributes-filter",
        "mkdir -p .git/info; echo '* filter=x diff=x merge=x' > .git/info/attributes; echo '* filter=x diff=x' > .gitattributes; git config filter.x.clean \"touch $OUT/new31; cat\"; git config diff.x.textconv \"touch $OUT/new31; cat\"; echo a > a",
        AtFullOnly,
    ),
    (
        "git-alternates-and-refs",
        "echo $OUT > .git/objects/info/alternates; ln -sf $OUT/.bashrc .git/HEAD.x; git symbolic-ref refs/heads/x refs/heads/../../config; git update-ref refs/heads/y HEAD; echo x > .git/index.lock; rm .git/index.lock",
        Everywhere,
    ),
    (
        "git-packed-refs-link",
        "rm -f .git/packed-refs; ln -s $OUT/.bashrc .git/packed-refs; git pack-refs --all",
        Everywhere,
    ),
    (
        "git-index-link",
        "rm -f .git/index; ln -s $OUT/.bashrc .git/index; git add -A; git commit -qm x --allow-empty",
        Everywhere,
    ),
];
