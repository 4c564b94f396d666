//! More attempts of `escapes`: other system calls for the same goals, files that root owns, and what the
//! kernel reveals about the machine.

use crate::escape_attempts::Kept::{self, AtFullOnly, Everywhere};

/// As in `escape_attempts`.
pub(crate) const FURTHER: &[(&str, &str, Kept)] = &[
    // The project's own socket pair, used to reach others.
    (
        "datagram-of-a-pair",
        r#"/usr/bin/python3 -c 'import socket,os;a,b=socket.socketpair(1,2);a.sendto(b"x",os.environ["DSOCK"])'"#,
        Everywhere,
    ),
    (
        "raw-pair",
        r#"/usr/bin/python3 -c 'import socket,os;a,b=socket.socketpair(1,3);a.sendto(b"x",os.environ["DSOCK"])'"#,
        Everywhere,
    ),
    (
        "pair-reconnected",
        r#"/usr/bin/python3 -c 'import socket,os;a,b=socket.socketpair(1,2);a.connect(os.environ["DSOCK"]);a.send(b"x")'"#,
        Everywhere,
    ),
    (
        "pair-to-abstract",
        r#"/usr/bin/python3 -c 'import socket,os;a,b=socket.socketpair(1,2);a.sendto(b"x","\0"+os.environ["ABS"]+"-dgram")'"#,
        Everywhere,
    ),
    (
        "stream-pair-reconnected",
        r#"/usr/bin/python3 -c 'import socket,os
for k in 1,5:
  a,b=socket.socketpair(1,k);b.close()
  for n in os.environ["USOCK"],"\0"+os.environ["ABS"]:
    try: a.connect(n)
    except OSError: pass'"#,
        Everywhere,
    ),
    (
        "pairs-of-other-families",
        r#"/usr/bin/python3 -c 'import socket
for f in range(2,46):
  for k in 1,2,4,5:
    try: socket.socketpair(f,k); print("ESCAPED",f)
    except OSError: pass'"#,
        Everywhere,
    ),
    (
        "raw-internet-sockets",
        r#"/usr/bin/python3 -c 'import socket
for f,k,p in ((2,3,1),(2,3,255),(10,3,58),(2,10,6)):
  try: socket.socket(f,k,p); print("ESCAPED")
  except OSError: pass'"#,
        Everywhere,
    ),
    (
        "mapped-address",
        r#"/usr/bin/python3 -c 'import socket,os
for n in "::ffff:127.0.0.1","::1","::":
  try: socket.socket(10,1).connect((n,int(os.environ["TPORT"])))
  except OSError: pass'"#,
        Everywhere,
    ),
    (
        "metadata-address",
        "timeout 1 bash -c 'exec 3<>/dev/tcp/169.254.169.254/80' 2>/dev/null && echo ESCAPED",
        Everywhere,
    ),
    (
        "proxy-to-the-host",
        r#"/usr/bin/python3 -c 'import socket,os
p=os.environ.get("http_proxy","").split("//")[-1].rsplit(":",1)
for h in "127.0.0.1","127.1","2130706433","0x7f.1","0177.0.0.1","[::ffff:127.0.0.1]","[::1]","localhost","a.localhost","0.0.0.0","[::]","127.0.0.1.nip.io":
  for r in f"CONNECT {h}:%s HTTP/1.1\r\n\r\n",f"GET http://{h}:%s/ HTTP/1.1\r\n\r\n",f"GET http://x@{h}:%s/ HTTP/1.1\r\n\r\n",f"GET / HTTP/1.1\r\nHost: {h}:%s\r\n\r\n":
    try:
      s=socket.create_connection((p[0],int(p[1])),1);s.sendall((r%os.environ["TPORT"]).encode());s.settimeout(.2);s.recv(99)
    except Exception: pass'"#,
        Everywhere,
    ),
    (
        "socks-to-the-host",
        r#"/usr/bin/python3 -c 'import socket,os,struct
p=os.environ.get("http_proxy","").split("//")[-1].rsplit(":",1)
t=struct.pack(">H",int(os.environ["TPORT"]))
for a in b"\1\x7f\0\0\1",b"\3\x09localhost",b"\3\x0a2130706433",b"\4"+b"\0"*10+b"\xff\xff\x7f\0\0\1",b"\4"+b"\0"*15+b"\1",b"\1\0\0\0\0":
  for c in b"\1",b"\2",b"\3":
    try:
      s=socket.create_connection((p[0],int(p[1])),1);s.settimeout(.2);s.sendall(b"\5\1\0");s.recv(9);s.sendall(b"\5"+c+b"\0"+a+t);s.recv(99)
    except Exception: pass'"#,
        Everywhere,
    ),
    // Processes outside, by other calls.
    ("disk-priority-of-victim", "ionice -c 3 -p $VPID 2>/dev/null && echo ESCAPED", Everywhere),
    (
        "disk-priority-of-user",
        r#"/usr/bin/python3 -c 'import ctypes,os;ctypes.CDLL(None).syscall(251,3,os.getuid(),3<<13)'; ionice -p $VPID 2>/dev/null | grep -q idle && echo ESCAPED"#,
        Everywhere,
    ),
    (
        "oom-score-of-victim",
        "echo 1000 2>/dev/null > /proc/$VPID/oom_score_adj && echo ESCAPED",
        Everywhere,
    ),
    (
        "settings-of-victim",
        "for f in coredump_filter clear_refs timerslack_ns autogroup comm sched attr/current; do (echo 1 > /proc/$VPID/$f) 2>/dev/null && echo ESCAPED $f; done",
        Everywhere,
    ),
    (
        "victim-by-its-threads",
        "cat /proc/$VPID/task/*/environ /proc/$VPID/task/*/root$SEC/id 2>/dev/null",
        Everywhere,
    ),
    (
        "victim-inspected",
        "for f in auxv syscall io maps smaps pagemap stack personality; do (cat /proc/$VPID/$f) 2>/dev/null | head -c 1 | grep -qa . && echo ESCAPED $f; done; ls /proc/$VPID/map_files/* 2>/dev/null | grep -q . && echo ESCAPED",
        Everywhere,
    ),
    (
        "memory-of-every-process",
        "for p in /proc/[0-9]*; do [ $p = /proc/$$ ] && continue; (exec 3<$p/mem) 2>/dev/null && echo ESCAPED; done",
        Everywhere,
    ),
    ("kill-everything", "kill -9 -1; sleep .1", Everywhere),
    (
        "signal-by-queue",
        r#"/usr/bin/python3 -c 'import ctypes,os;b=ctypes.create_string_buffer(128);l=ctypes.CDLL(None);v=int(os.environ["VPID"]);l.syscall(129,v,9,b);l.syscall(234,v,v,9);l.syscall(200,v,9)'; sleep .1"#,
        Everywhere,
    ),
    (
        "signal-by-socket-owner",
        r#"/usr/bin/python3 -c 'import socket,os,fcntl,struct;a,b=socket.socketpair();v=int(os.environ["VPID"])
for c in 0x8901,0x8902:
  try: fcntl.ioctl(a,c,struct.pack("i",v))
  except OSError: pass
fcntl.fcntl(a,10,9);fcntl.fcntl(a,4,0o20000|fcntl.fcntl(a,3));b.send(b"x")'; sleep .1"#,
        Everywhere,
    ),
    (
        "seize-victim",
        r#"/usr/bin/python3 -c 'import ctypes,os;l=ctypes.CDLL(None);print("ESCAPED" if l.ptrace(0x4206,int(os.environ["VPID"]),0,0)==0 else "no")'"#,
        Everywhere,
    ),
    (
        "descriptors-of-every-process",
        r#"/usr/bin/python3 -c 'import os,ctypes;l=ctypes.CDLL(None)
for p in os.listdir("/proc"):
  if not p.isdigit() or int(p) in (os.getpid(),os.getppid()): continue
  f=l.syscall(434,int(p),0)
  for n in range(16):
    if f>=0 and l.syscall(438,f,n,0)>=0: print("ESCAPED",p,n)'"#,
        Everywhere,
    ),
    (
        "pages-of-victim-moved",
        r#"/usr/bin/python3 -c 'import ctypes,os;l=ctypes.CDLL(None);m=ctypes.byref(ctypes.c_ulong(1));print("ESCAPED" if l.syscall(256,int(os.environ["VPID"]),2,m,m)==0 else "no")'"#,
        Everywhere,
    ),
    (
        "namespaces-by-pidfd",
        r#"/usr/bin/python3 -c 'import ctypes,os;l=ctypes.CDLL(None)
for p in os.environ["VPID"],"1":
  f=l.syscall(434,int(p),0)
  for k in 0x10000000,0x20000,0x40000000,0x20000000: print("ESCAPED" if f>=0 and l.syscall(308,f,k)==0 else "no")'"#,
        Everywhere,
    ),
    // The same calls by other numbers.
    (
        "namespaces-by-clone3",
        r#"/usr/bin/python3 -c 'import ctypes,os,struct;l=ctypes.CDLL(None)
for k in 0x10000000,0x20000,0x40000000:
  p=l.syscall(435,ctypes.create_string_buffer(struct.pack("QQQQQQQQ",k,0,0,0,17,0,0,0),64),64)
  if p==0: os._exit(0)
  print("ESCAPED" if p>0 else "no")'"#,
        Everywhere,
    ),
    (
        "namespaces-by-x32",
        r#"/usr/bin/python3 -c 'import ctypes;l=ctypes.CDLL(None)
for n,a in ((272,0x10000000),(41,40),(425,1)): print("ESCAPED" if l.syscall(0x40000000+n,a,1,0)>=0 else "no")'"#,
        Everywhere,
    ),
    (
        "namespaces-by-int80",
        r#"/usr/bin/python3 -c 'import ctypes,mmap
m=mmap.mmap(-1,4096,prot=7);m.write(bytes.fromhex("53b836010000bb00000010cd805bc3"))
r=ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))();print("ESCAPED" if r==0 else "no")'"#,
        Everywhere,
    ),
    (
        "program-in-memory",
        r#"/usr/bin/python3 -c 'import os;f=os.memfd_create("x",0);os.write(f,open("/usr/bin/touch","rb").read());os.execve(f,["touch",os.environ["OUT"]+"/new40"],os.environ)'"#,
        Everywhere,
    ),
    (
        "undumpable-writer",
        r#"/usr/bin/python3 -c 'import ctypes,os;ctypes.CDLL(None).prctl(4,0);open(os.environ["OUT"]+"/.bashrc","a").write("x")'"#,
        Everywhere,
    ),
    (
        "path-changed-while-it-is-looked-at",
        r#"/usr/bin/python3 -c 'import ctypes,os,threading,time
l=ctypes.CDLL(None);b=ctypes.create_string_buffer(4096);g,e=os.environ.get("TMPDIR","/tmp").encode()+b"/x\0",os.environ["OUT"].encode()+b"/new41\0"
end=time.time()+1
def flip():
  while time.time()<end: ctypes.memmove(b,g,len(g)); ctypes.memmove(b,e,len(e))
threading.Thread(target=flip,daemon=True).start()
while time.time()<end: l.syscall(257,-100,b,0o101,0o600)
os._exit(0)'"#,
        Everywhere,
    ),
    (
        "hardware-and-clock",
        r#"/usr/bin/python3 -c 'import ctypes,struct;l=ctypes.CDLL(None);b=ctypes.create_string_buffer(struct.pack("Iq",1,1),256)
for n,a in ((172,(3,)),(173,(0x80,1,1)),(159,(b,)),(305,(0,b)),(443,(0,0,0,b)),(179,(0,b,0,b))): print("ESCAPED" if l.syscall(n,*a)>=0 else "no",n)' | grep ESCAPED"#,
        Everywhere,
    ),
    // Files that root owns.
    (
        "system-files",
        "for f in /etc/passwd /etc/ld.so.preload /etc/profile.d/escaped.sh /usr/local/bin/escaped /root/.bashrc /etc/sudoers.d/escaped /boot/escaped /lib/escaped /var/lib/escaped /etc/hosts; do (: >> $f) 2>/dev/null && echo ESCAPED $f; done",
        Everywhere,
    ),
    (
        "kernel-files",
        "for f in /sys/kernel/mm/transparent_hugepage/enabled /sys/block/*/queue/read_ahead_kb /sys/module/*/parameters/* /sys/class/net/*/ifalias /sys/kernel/profiling /sys/devices/system/cpu/cpu1/online /sys/kernel/tracing/tracing_on; do [ -e $f ] && (cat $f > $f) 2>/dev/null && echo ESCAPED $f; done",
        Everywhere,
    ),
    (
        "control-groups",
        "for d in /sys/fs/cgroup /sys/fs/cgroup/*; do (echo $$ > $d/cgroup.procs) 2>/dev/null && echo ESCAPED $d; mkdir $d/escaped 2>/dev/null && echo ESCAPED $d; done",
        Everywhere,
    ),
    (
        "kernel-trace",
        "for f in trace saved_cmdlines available_events kprobe_events set_event; do cat /sys/kernel/tracing/$f /sys/kernel/debug/tracing/$f 2>/dev/null | head -c 1 | grep -q . && echo ESCAPED $f; done; ls /sys/kernel/debug 2>/dev/null | grep -q . && echo ESCAPED",
        Everywhere,
    ),
    (
        "more-devices",
        "for d in /dev/userfaultfd /dev/console /dev/tty1 /dev/vcs /dev/snapshot /dev/hwrng /dev/vhost-net /dev/vsock /dev/uinput /dev/input/* /dev/dri/* /dev/cpu/*/msr /dev/rtc0 /dev/watchdog /dev/mapper/control; do (exec 3<>$d) 2>/dev/null && echo ESCAPED $d; done",
        Everywhere,
    ),
    ("core-dump-outside", "ulimit -c unlimited; cd $OUT && bash -c 'kill -SEGV $$'", Everywhere),
    (
        "service-manager",
        "for o in --user --system; do timeout 2 systemd-run $o touch $OUT/new42 2>/dev/null && echo ESCAPED; done; timeout 2 busctl list 2>/dev/null | grep -q : && echo ESCAPED",
        Everywhere,
    ),
    // The record, which is outside of the project.
    (
        "record",
        "r=$OUT/../record; cat $r/* /proc/self/root$r/* 2>/dev/null | grep -qa SQLite && echo ESCAPED; for f in $r/retake.db $r/new; do (: >> $f) 2>/dev/null && echo ESCAPED; done; mv $r $r.2 2>/dev/null && echo ESCAPED; flock -n $r/retake.db true 2>/dev/null && echo ESCAPED",
        Everywhere,
    ),
    // Secrets.
    (
        "secret-by-directory-descriptor",
        r#"/usr/bin/python3 -c 'import os
for f in os.O_PATH,os.O_RDONLY:
  d=os.open(os.environ["OUT"],f)
  for n in ".ssh/id","./.ssh/../.ssh/id":
    try: print(os.read(os.open(n,os.O_RDONLY,dir_fd=d),99))
    except OSError: pass'"#,
        Everywhere,
    ),
    (
        "secret-executed",
        "sh $SEC/id; . $SEC/id; bash -c \"source $SEC/id\"; xargs -a $SEC/id echo",
        Everywhere,
    ),
    (
        "secret-by-other-programs",
        "grep -r . $SEC; find $SEC -exec cat {} +; cp -r $SEC/. s; cat s/id; base64 -d <(base64 $SEC/id); dd if=$SEC/id; git config -f $SEC/id -l; /usr/bin/python3 -c 'import os,shutil;shutil.copytree(os.environ[\"SEC\"],\"t\")'; cat t/id",
        Everywhere,
    ),
    // Programs in the project that run with the rights of their owner for every user who executes them.
    (
        "set-user-id",
        "cp /usr/bin/true s; chmod 4755 s; chmod u+s s; install -m 4755 s t; tar c s | tar xp --mode=4755; find . -type f -perm /4000 | grep -q . && echo ESCAPED",
        Everywhere,
    ),
    (
        "set-user-id-of-what-is-there",
        r#"/usr/bin/python3 -c 'import ctypes,os,struct;l=ctypes.CDLL(None)
for i,(n,a) in enumerate(((90,(b"f0",0o4755)),(91,(lambda:os.open("f1",0),0o4755)),(268,(-100,b"f2",0o6755)))):
  open("f%d"%i,"w").close();l.syscall(n,*(x() if callable(x) else x for x in a))'; find . -type f -perm /6000 | grep -q . && echo ESCAPED"#,
        Everywhere,
    ),
    (
        "set-user-id-by-a-new-call",
        r#"touch f; /usr/bin/python3 -c 'import ctypes,os,struct;l=ctypes.CDLL(None);l.syscall(452,-100,b"f",0o4755,0)'; find . -type f -perm /6000 | grep -q . && echo ESCAPED"#,
        Everywhere,
    ),
    (
        "set-id-of-a-new-file",
        r#"/usr/bin/python3 -c 'import ctypes,os,struct;l=ctypes.CDLL(None)
for m in 0o4755,0o2755:
  for i,(n,a) in enumerate(((85,(m,)),(133,(0o100000|m,0)),(2,(0o101,m)))): l.syscall(n,b"a%o%d"%(m,i),*a)
  for i,(n,a) in enumerate(((259,(0o100000|m,0)),(257,(0o101,m)))): l.syscall(n,-100,b"b%o%d"%(m,i),*a)'; find . -type f -perm /6000 | grep -q . && echo ESCAPED"#,
        Everywhere,
    ),
    (
        "set-id-of-a-file-without-a-name",
        r#"/usr/bin/python3 -c 'import ctypes,os,struct;l=ctypes.CDLL(None)
for m in 0o4755,0o2755:
  f=l.syscall(257,-100,b".",0o20200001,m);l.linkat(-100,b"/proc/self/fd/%d"%f,-100,b"l%o"%m,0x400)'; find . -type f -perm /6000 | grep -q . && echo ESCAPED"#,
        Everywhere,
    ),
    (
        "set-id-behind-a-pointer",
        r#"/usr/bin/python3 -c 'import ctypes,os,struct;l=ctypes.CDLL(None)
for m in 0o4755,0o2755: l.syscall(437,-100,b"o%o"%m,struct.pack("QQQ",0o101,m,0),24)'; find . -type f -perm /6000 | grep -q . && echo ESCAPED"#,
        Everywhere,
    ),
    // The project itself.
    (
        "project-moved",
        "cd /; mv $PROJ $OUT/new43 && echo ESCAPED; mv $PROJ $PROJ.2 && echo ESCAPED; rm -rf $PROJ/../outside; rmdir $PROJ && echo ESCAPED",
        Everywhere,
    ),
    (
        "git-worktree-outside",
        "git worktree add -q $OUT/new44; git clone -q . $OUT/new44; git init -q $OUT/new44",
        Everywhere,
    ),
    (
        "git-checkout-outside",
        "echo x > new45; git add new45; git commit -qm x; GIT_WORK_TREE=$OUT git checkout -q HEAD -- new45; git archive -o $OUT/new46 HEAD; git bundle create $OUT/new46 HEAD; git --work-tree=$OUT clean -fdxq",
        Everywhere,
    ),
    (
        "git-commondir",
        "cp -r .git evil; printf '[core]\\n fsmonitor = touch %s/new47;false\\n' $OUT >> evil/config; echo ../evil > .git/commondir",
        Everywhere,
    ),
    (
        "git-config-hard-link",
        "ln .git/config c; printf '[core]\\n fsmonitor = touch %s/new48;false\\n' $OUT >> c",
        AtFullOnly,
    ),
    (
        "git-config-by-descriptor",
        "exec 7<.git/config; printf '[core]\\n fsmonitor = touch %s/new49;false\\n' $OUT >> /proc/self/fd/7",
        AtFullOnly,
    ),
    (
        "git-hooks-opened-up",
        "chmod -R 777 .git/hooks .git; printf '#!/bin/sh\\ntouch %s/new50' $OUT > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit",
        AtFullOnly,
    ),
    (
        "git-config-attributes-and-times",
        "touch -d 2001-01-01 .git/config && echo ESCAPED; chmod 600 .git/config && echo ESCAPED; /usr/bin/python3 -c 'import os;os.setxattr(\".git/config\",\"user.x\",b\"1\");print(\"ESCAPED\")'",
        AtFullOnly,
    ),
    (
        "git-directory-behind-a-link",
        "mkdir d; mv .git d/.git; ln -s d/.git .git; printf '#!/bin/sh\\ntouch %s/new51' $OUT > d/.git/hooks/pre-commit; chmod +x d/.git/hooks/pre-commit",
        AtFullOnly,
    ),
    (
        "git-hooks-by-template",
        "mkdir -p t/hooks; printf '#!/bin/sh\\ntouch %s/new52' $OUT > t/hooks/pre-commit; chmod +x t/hooks/pre-commit; git init -q --template=t .",
        AtFullOnly,
    ),
    (
        "git-worktree-extension",
        "git config extensions.worktreeConfig true; printf '[core]\\n fsmonitor = touch %s/new53;false\\n' $OUT > .git/config.worktree",
        AtFullOnly,
    ),
    (
        "git-config-in-a-new-file",
        "git config include.path ../c; printf '[core]\\n fsmonitor = touch %s/new54;false\\n' $OUT > c; git config --local core.hooksPath h; mkdir h; printf '#!/bin/sh\\ntouch %s/new54' $OUT > h/pre-commit; chmod +x h/pre-commit",
        AtFullOnly,
    ),
];
