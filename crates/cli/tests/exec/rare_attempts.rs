//! More attempts of `escapes`: rarely used calls and files, and what a tracer, an earlier
//! run or a cache could enable.

use crate::escape_attempts::Kept::{self, AtFullOnly, Everywhere};

/// As in `escape_attempts`.
pub(crate) const RARE: &[(&str, &str, Kept)] = &[
    // Bypasses of the system call filter.
    (
        "call-changed-by-a-tracer",
        r#"/usr/bin/python3 -c 'import ctypes,os,signal,struct
l=ctypes.CDLL(None,use_errno=True);l.ptrace.argtypes=[ctypes.c_long]*4;l.ptrace.restype=ctypes.c_long
for wanted,a in ((41,40),(272,0x10000000),(425,8),(250,0)):
  p=os.fork()
  if p==0:
    l.ptrace(0,0,0,0);os.kill(os.getpid(),signal.SIGSTOP)
    os._exit(77 if l.syscall(39,a,1,0)>=0 and l.syscall(39)==os.getpid() else 0)
  os.waitpid(p,0);l.ptrace(0x4200,p,0,1);changed=False
  while True:
    l.ptrace(24,p,0,0)
    s=os.waitpid(p,0)[1]
    if os.WIFEXITED(s) or os.WIFSIGNALED(s): break
    n=l.ptrace(3,p,15*8,0)
    if n==39 and not changed:
      changed=True;l.ptrace(6,p,15*8,wanted)
      l.ptrace(24,p,0,0);os.waitpid(p,0)
      r=l.ptrace(3,p,10*8,0)
      if r>=0: print("ESCAPED",wanted,r)'"#,
        Everywhere,
    ),
    (
        "filter-suspended-by-a-tracer",
        r#"/usr/bin/python3 -c 'import ctypes,os,signal
l=ctypes.CDLL(None);p=os.fork()
if p==0: signal.pause()
if l.ptrace(0x4206,p,0,0x200000)==0: print("ESCAPED")
os.kill(p,9)'"#,
        Everywhere,
    ),
    (
        "second-listener",
        r#"/usr/bin/python3 -c 'import ctypes,struct
l=ctypes.CDLL(None);l.prctl(38,1,0,0,0)
f=ctypes.create_string_buffer(struct.pack("HBBI",6,0,0,0x7fff0000));g=ctypes.create_string_buffer(struct.pack("HxxxxxxQ",1,ctypes.addressof(f)))
n=l.syscall(317,1,8,g)
if n>=0: print("a listener of its own")
import os;open(os.environ["OUT"]+"/.bashrc","a").write("x")'"#,
        Everywhere,
    ),
    (
        "high-bits-of-arguments",
        r#"/usr/bin/python3 -c 'import ctypes
l=ctypes.CDLL(None);l.syscall.restype=ctypes.c_long;h=1<<32
for n,a in ((41,(h|40,1,0)),(53,(h|40,1,0,ctypes.create_string_buffer(8))),(272,(h|0x10000000,)),(16,(0,h|0x541c,b"\x0c"))):
  r=l.syscall(n,*[ctypes.c_ulong(x) if isinstance(x,int) else x for x in a])
  if r>=0: print("ESCAPED",n)'"#,
        Everywhere,
    ),
    (
        "calls-that-came-later",
        r#"/usr/bin/python3 -c 'import ctypes,os,struct
l=ctypes.CDLL(None);o=os.environ["OUT"];b=ctypes.create_string_buffer(256)
v=ctypes.create_string_buffer(b"1");x=struct.pack("QII",ctypes.addressof(v),1,0)
for n,a in ((463,(-100,(o+"/exec.sh").encode(),0,b"user.x",x,16)),(469,(-100,(o+"/exec.sh").encode(),struct.pack("QIIIIQ",0x10,0,0,0,0,0),32,0))):
  if l.syscall(n,*a)==0: print("ESCAPED",n)'"#,
        AtFullOnly,
    ),
    // Namespaces.
    (
        "namespaces-above",
        r#"/usr/bin/python3 -c 'import ctypes,os,fcntl
l=ctypes.CDLL(None)
for n in os.listdir("/proc/self/ns"):
  f=os.open("/proc/self/ns/"+n,0)
  for c in 0xb701,0xb702,0x8008b70d,0x8010b70b,0x8010b70c:
    try: g=fcntl.ioctl(f,c)
    except OSError: continue
    if g>2 and l.syscall(308,g,0)==0: print("ESCAPED",n)
p=l.syscall(434,os.getpid(),0)
for c in range(0xff01,0xff0b):
  try: g=fcntl.ioctl(p,c)
  except OSError: continue
  if g>2 and l.syscall(308,g,0)==0: print("ESCAPED",c)'"#,
        Everywhere,
    ),
    (
        "maps-of-users-written",
        "for f in uid_map gid_map setgroups; do (echo '0 0 4294967295' > /proc/self/$f) 2>/dev/null && echo ESCAPED; done; newuidmap $$ 0 0 1 2>/dev/null && echo ESCAPED",
        Everywhere,
    ),
    (
        "capabilities-regained",
        r#"/usr/bin/python3 -c 'import ctypes,struct
l=ctypes.CDLL(None)
h=struct.pack("Ii",0x20080522,0);d=struct.pack("IIIIII",*[0xffffffff]*6)
if l.syscall(126,h,d)==0: print("ESCAPED")
for c in range(41):
  if l.prctl(47,2,c,0,0)==0: print("ESCAPED",c)
if l.prctl(28,0,0,0,0)==0: print("ESCAPED")
for n in 105,106,116:
  if l.syscall(n,0 if n!=116 else 1,b"\0\0\0\0")==0 and __import__("os").getuid()!=0: print("ESCAPED",n)'; su -c true nobody </dev/null 2>/dev/null && echo ESCAPED"#,
        Everywhere,
    ),
    // Read-only files, changed other than by writing.
    (
        "written-by-descriptors-for-reading",
        r#"/usr/bin/python3 -c 'import os,fcntl,struct,mmap
o=os.environ["OUT"]+"/.bashrc";f=os.open(o,os.O_RDONLY);mine=os.open("f",os.O_RDWR|os.O_CREAT);os.write(mine,b"changed\n"*1000)
def attempt(act):
  try: act()
  except Exception: pass
attempt(lambda:os.ftruncate(f,0))
attempt(lambda:os.posix_fallocate(f,0,99999))
attempt(lambda:fcntl.ioctl(f,0x40049409,mine))
attempt(lambda:fcntl.ioctl(f,0x4020940d,struct.pack("qQQQ",mine,0,0,0)))
attempt(lambda:os.sendfile(f,mine,0,5))
attempt(lambda:os.copy_file_range(mine,f,5,0,0))
attempt(lambda:os.splice(mine,f,5))
attempt(lambda:os.open("/proc/self/fd/%d"%f,os.O_WRONLY|os.O_TRUNC))
attempt(lambda:os.open("/dev/fd/%d"%f,os.O_RDWR|os.O_APPEND))
attempt(lambda:os.link("/proc/self/fd/%d"%f,"h",follow_symlinks=True))
attempt(lambda:open("h","a").write("x"))
m=mmap.mmap(f,0,mmap.MAP_SHARED,mmap.PROT_READ)
import ctypes;l=ctypes.CDLL(None);attempt(lambda:l.syscall(10,ctypes.c_void_p(0),4096,7))
attempt(lambda:fcntl.ioctl(f,0xc0185879));attempt(lambda:fcntl.ioctl(f,0xc0045877))'"#,
        Everywhere,
    ),
    (
        "times-and-owners-by-descriptors",
        r#"/usr/bin/python3 -c 'import os,ctypes
l=ctypes.CDLL(None);o=os.environ["OUT"]+"/exec.sh"
def attempt(act):
  try: act()
  except OSError: pass
for flag in os.O_RDONLY,os.O_PATH:
  f=os.open(o,flag)
  attempt(lambda:os.utime(f,(1,1)));attempt(lambda:os.fchmod(f,0o777));attempt(lambda:os.utime("/proc/self/fd/%d"%f,(1,1)));attempt(lambda:os.chmod("/proc/self/fd/%d"%f,0o777));attempt(lambda:os.setxattr(f,"user.x",b"1"))
  l.syscall(452,f,b"",0o777,0x1000)'"#,
        AtFullOnly,
    ),
    (
        "white-out",
        r#"/usr/bin/python3 -c 'import ctypes,os
l=ctypes.CDLL(None);o=os.environ["OUT"].encode()
open("f","w").write("x")
for a,b,k in ((b"f",o+b"/exec.sh",4),(o+b"/exec.sh",b"g",4),(b"f",o+b"/new60",1),(o,b"d",1),(os.environ["SEC"].encode(),b"s",2)):
  l.syscall(316,-100,a,-100,b,k)'; cat s/id 2>/dev/null"#,
        Everywhere,
    ),
    (
        "file-by-its-handle",
        r#"/usr/bin/python3 -c 'import ctypes,os,struct
l=ctypes.CDLL(None,use_errno=True);s=os.environ["SEC"].encode()
for path,flags in ((s+b"/id",0),(s,0),(os.environ["OUT"].encode()+b"/.bashrc",1)):
  h=ctypes.create_string_buffer(struct.pack("Ii",128,0),136);m=ctypes.c_int()
  l.syscall(303,-100,path,h,ctypes.byref(m),0)
  for at in (-100,os.open("/",os.O_PATH)):
    f=l.syscall(304,at,h,flags)
    if f>=0: print("ESCAPED")'"#,
        Everywhere,
    ),
    (
        "secret-by-a-path-without-links",
        r#"/usr/bin/python3 -c 'import os
o=os.environ["OUT"]
for n in ".ssh/./id",".ssh//id","../outside/.ssh/id",".ssh/id/","./.ssh/id\0x",".SSH/id",".ssh\u200b/id",".\uff53sh/id":
  try: print(open(o+"/"+n).read())
  except (OSError,ValueError): pass
import ctypes;l=ctypes.CDLL(None)
w=l.inotify_init();l.inotify_add_watch(w,os.environ["SEC"].encode()+b"/id",0xfff)>=0 and print("ESCAPED")'"#,
        AtFullOnly,
    ),
    // Processes outside.
    (
        "advice-and-locks-of-victim",
        r#"/usr/bin/python3 -c 'import ctypes,os,struct
l=ctypes.CDLL(None);v=int(os.environ["VPID"]);b=ctypes.create_string_buffer(64)
p=l.syscall(434,v,0)
for n,a in ((440,(p,struct.pack("QQ",4096,4096),1,4,0)),(448,(p,0)),(312,(os.getpid(),v,0,0,1)),(274,(v,b,b)),(311,(v,b,1,b,1,0)),(61,(v,b,0x40000000,0))):
  if p>=0 and l.syscall(n,*a)>0: print("ESCAPED",n)'"#,
        Everywhere,
    ),
    (
        "signals-by-timers-and-owners",
        r#"/usr/bin/python3 -c 'import ctypes,os,fcntl,struct,time
l=ctypes.CDLL(None);v=int(os.environ["VPID"])
t=ctypes.c_int();l.syscall(222,0,struct.pack("QiiI48x",0,9,4,v),ctypes.byref(t))==0 and l.syscall(223,t,0,struct.pack("qqqq",0,0,0,1),0)
r,w=os.pipe()
for kind,who in ((0,v),(1,v),(2,v),(2,os.getpgid(0))):
  if who==os.getpgid(0): continue
  try: fcntl.fcntl(r,15,struct.pack("ii",kind,who))
  except OSError: continue
  fcntl.fcntl(r,10,9);fcntl.fcntl(r,4,0o20000|fcntl.fcntl(r,3));os.write(w,b"x")
for who in -v,-1:
  try: fcntl.fcntl(r,8,who)
  except OSError: pass
os.write(w,b"x")
d=os.open(os.environ["OUT"],os.O_RDONLY)
try: fcntl.fcntl(d,8,v);fcntl.fcntl(d,10,9);fcntl.fcntl(d,0x402,0x8000003f)
except OSError: pass'; ls $OUT >/dev/null; sleep .1"#,
        Everywhere,
    ),
    (
        "group-and-session-of-victim",
        r#"/usr/bin/python3 -c 'import os
v=int(os.environ["VPID"])
for act in (lambda:os.setpgid(v,0),lambda:os.setpgid(0,os.getpgid(v)),lambda:os.killpg(os.getpgid(v),9),lambda:os.killpg(v,9)):
  try: act()
  except OSError: continue
  print("ESCAPED")'"#,
        Everywhere,
    ),
    // Netlink, packets and options of the network.
    (
        "netlink-of-the-machine",
        r#"/usr/bin/python3 -c 'import socket,select
for p in range(23):
  try: s=socket.socket(16,3,p);s.bind((0,0xffffffff))
  except OSError: continue
  if p in (9,11,15): pass
  if p==11:
    import struct,os
    s.send(struct.pack("IHHII",40,3,0,0,0)+struct.pack("IIIIHHI",1,1,0,0,4,0,1))
    if select.select([s],[],[],.2)[0] and s.recv(999): print("ESCAPED",p)'"#,
        Everywhere,
    ),
    (
        "network-of-the-machine-seen",
        r#"/usr/bin/python3 -c 'import os
t="%04X"%int(os.environ["TPORT"])
for f in "tcp","udp","unix","tcp6":
  for d in "/proc/net/","/proc/self/net/","/proc/1/net/","/proc/thread-self/net/":
    try: s=open(d+f).read()
    except OSError: continue
    if ":"+t in s and "0100007F:"+t+" 00000000:0000 0A" in s or os.environ["ABS"] in s: print("ESCAPED",d+f)'"#,
        AtFullOnly,
    ),
    (
        "link-local-and-broadcast",
        r#"/usr/bin/python3 -c 'import socket,os
p=int(os.environ["UPORT"])
for f,a in ((2,("255.255.255.255",p)),(2,("224.0.0.1",p)),(2,("0.0.0.0",p)),(2,("127.255.255.255",p)),(10,("ff02::1",p,0,1)),(10,("fe80::1",p,0,1))):
  try: s=socket.socket(f,2);s.setsockopt(1,6,1);s.sendto(b"x",a)
  except OSError: pass'"#,
        Everywhere,
    ),
    // Terminals and the keyboard.
    (
        "terminals-outside",
        r#"for t in /dev/pts/* /dev/console /dev/tty[0-9]* /proc/$PPID/fd/*; do [ -c $t ] && [ $t != /dev/pts/ptmx ] && (exec 3<>$t) 2>/dev/null && echo ESCAPED $t; done"#,
        AtFullOnly,
    ),
    (
        "tty-controls",
        r#"/usr/bin/python3 -c 'import fcntl,os,pty
m,s=pty.openpty()
for fd in m,s:
  for c,a in ((0x5412,b"Q"),(0x541c,b"\x02"),(0x541c,b"\x03"),(0x541d,b"")):
    try: fcntl.ioctl(fd,c,a)
    except OSError: continue
    print("ESCAPED",hex(c))'"#,
        Everywhere,
    ),
    // What git would do on the host.
    (
        "git-elsewhere-by-variables",
        "GIT_DIR=$OUT/.git git init -q; GIT_CONFIG=$OUT/.gitconfig git config a.b c; git config --global core.fsmonitor x; git config --system core.fsmonitor x; XDG_CONFIG_HOME=$OUT/new61 git config --global a.b c; GIT_OBJECT_DIRECTORY=$OUT/new62 git hash-object -w $PROJ/link; GIT_INDEX_FILE=$OUT/new63 git update-index --refresh; GIT_TRACE=$OUT/new64 git status; GIT_TRACE2=$OUT/new65 git status",
        Everywhere,
    ),
    (
        "git-legacy-remotes-and-hooks",
        "mkdir -p .git/remotes .git/branches; echo \"URL: ext::touch $OUT/new66\" > .git/remotes/origin; echo \"ext::touch $OUT/new66\" > .git/branches/origin; mkdir -p .git/worktrees/x/hooks; printf '#!/bin/sh\\ntouch %s/new66' $OUT > .git/worktrees/x/hooks/pre-commit; chmod +x .git/worktrees/x/hooks/pre-commit; printf '[core]\\n fsmonitor = touch %s/new66;false\\n' $OUT > .git/worktrees/x/config.worktree; git remote add origin \"ext::touch $OUT/new66\"",
        AtFullOnly,
    ),
    (
        "git-hooks-one-by-one",
        "cd .git/hooks && for h in *.sample; do mv $h ${h%.sample}; cp $h ${h%.sample}; ln -s $h ${h%.sample}; done; for n in pre-commit post-index-change fsmonitor-watchman reference-transaction; do printf '#!/bin/sh\\ntouch %s/new67' $OUT > $n; chmod +x $n; done; chmod -R +w .; exec 3>pre-commit",
        AtFullOnly,
    ),
    (
        "git-directory-by-pieces",
        "for p in .git .git/hooks .git/config .git/info; do rmdir $p; mv $p $p.x; ln -sfn /tmp $p; done; mkdir -p .git/info; echo '* filter=x' > .git/info/attributes; git config --file .git/config.worktree core.fsmonitor \"touch $OUT/new68;false\"; git config --file=.git/config core.fsmonitor \"touch $OUT/new68;false\"; git config extensions.worktreeConfig true",
        AtFullOnly,
    ),
    // Files in memory, or created again inside.
    (
        "devices-made-inside",
        "for d in 'm c 1 1' 'k c 1 11' 'd b 254 0' 'v b 259 0' 'f c 10 229'; do set -- $d; for w in . /tmp /dev/shm /dev /var/tmp; do mknod $w/$1 $2 $3 $4 2>/dev/null && (exec 3<$w/$1) 2>/dev/null && echo ESCAPED $w $d; done; done",
        Everywhere,
    ),
    (
        "covers-removed",
        "for p in /run /dev /proc /tmp $SEC /dev/shm /proc/sys; do umount $p; umount -l $p; rmdir $p; mv $p $p.x; done 2>/dev/null; cat $SEC/id; ls /run 2>/dev/null | grep -q -E 'docker|systemd|user|dbus' && echo ESCAPED; (: > /dev/kmsg) 2>/dev/null && echo ESCAPED; true",
        AtFullOnly,
    ),
    (
        "proc-written",
        "find /proc -maxdepth 1 -type f -writable 2>/dev/null | while read f; do (: >> $f) 2>/dev/null && echo ESCAPED $f; done; for f in /proc/sys/kernel/* /proc/sys/vm/* /proc/sys/fs/* /proc/irq/*/smp_affinity /proc/bus/pci/*/* /proc/fs/*/*; do [ -f $f ] && (: >> $f) 2>/dev/null && echo ESCAPED $f; done; true",
        Everywhere,
    ),
    (
        "sys-written",
        "for f in $(find /sys -maxdepth 4 -type f -perm -200 2>/dev/null | head -3000); do (: >> $f) 2>/dev/null && echo ESCAPED $f; done; true",
        Everywhere,
    ),
    (
        "program-of-the-host-changed-in-memory",
        r#"/usr/bin/python3 -c 'import os,ctypes
l=ctypes.CDLL(None)
for n in "/bin/true","/usr/bin/python3",os.environ["OUT"]+"/exec.sh":
  for flags in os.O_RDWR,os.O_WRONLY,os.O_RDONLY|os.O_TRUNC:
    try: os.open(n,flags); print("ESCAPED",n)
    except OSError: pass
p=os.fork()
if p==0:
  l.ptrace(0,0,0,0);os.execv("/bin/true",["true"])
os.waitpid(p,0)
try:
  m=open("/proc/%d/mem"%p,"r+b",0);base=int(open("/proc/%d/maps"%p).readline().split("-")[0],16);m.seek(base);m.write(b"XXXX")
except OSError: pass
os.kill(p,9)
if open("/bin/true","rb").read(4)!=b"\x7fELF": print("ESCAPED")'"#,
        Everywhere,
    ),
];
