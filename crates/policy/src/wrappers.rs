//! Programs that start the command in their arguments, and the syntax of their options.
//!
//! An unlisted option hides what follows it: it might take the next word as
//! its value.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use super::word::Word;

/// Name, number of words before the command, options.
///
/// An option of one character is short, others are long. `=`: takes a value. `?`: a value may
/// be attached. `/`: the value is the new working directory. `%`: the value is an assignment.
/// `!`: nothing is started. `#`: what is started cannot be determined. `|`: the value is a line for
/// a shell. `name:word` is a program with that subcommand.
const WRAPPERS: [&str; 88] = [
    "env 0 i 0 v u= C/ S# a# P# ignore-environment null debug unset= chdir/ split-string# argv0# \
     block-signal? default-signal? ignore-signal? list-signal-handling",
    "nice 0 n= adjustment=",
    "nohup 0",
    "setsid 0 c f w V! h! ctty fork wait",
    "time 0 p v a q f= o= V! portability verbose append quiet format= output=",
    "timeout 1 f p v k= s= foreground preserve-status verbose kill-after= signal=",
    "stdbuf 0 i= o= e= input= output= error=",
    "ionice 0 t c= n= p! P! u! h! V! ignore class= classdata= pid! pgid! uid!",
    "chrt 1 b d e f i o r R a v m! p! h! V! T= P= D= batch deadline ext fifo idle other rr \
     reset-on-fork all-tasks verbose max! pid! sched-runtime= sched-period= sched-deadline=",
    "taskset 1 a c p! h! V! all-tasks cpu-list pid!",
    "sudo 0 A b B E H k n N P S C= D/ g= h= p= r= t= T= U= u= R# e# i# s# l! v! V! K! askpass \
     background bell preserve-env? set-home reset-timestamp non-interactive no-update \
     preserve-groups stdin close-from= chdir/ group= host= prompt= role= type= command-timeout= \
     other-user= user= chroot# edit# login# shell# list! validate! remove-timestamp!",
    "doas 0 n u= a= C# s# L!",
    "xargs 0 0 o p r t x a= d= E= e? I= i? L= l? n= P= s= null open-tty interactive \
     no-run-if-empty verbose exit show-limits arg-file= delimiter= eof? replace? max-lines? \
     max-args= max-procs= max-chars= process-slot-var=",
    "setarch 0 B F I L R S T X Z 3 v h! V! 32bit fdpic-funcptrs short-inode addr-compat-layout \
     addr-no-randomize whole-seconds sticky-timeouts read-implies-exec mmap-page-zero 3gb 4gb \
     uname-2.6 verbose list! show?",
    "prlimit 0 p! o= h! V! c? d? e? f? i? l? m? n? q? r? s? t? u? v? x? y? pid! output= noheadings \
     raw verbose core? data? nice? fsize? sigpending? memlock? rss? nofile? msgqueue? rtprio? \
     stack? cpu? nproc? as? locks? rttime?",
    "setpriv 0 d! h! V! dump! nnp no-new-privs ambient-caps= inh-caps= bounding-set= ruid= euid= \
     rgid= egid= reuid= regid= clear-groups keep-groups init-groups groups= securebits= \
     pdeathsig= ptracer= selinux-label= apparmor-profile= landlock-access= landlock-rule= \
     seccomp-filter= reset-env list-caps!",
    "choom 0 n= p! h! V! adjust= pid!",
    "ssh-agent 0 c s D! d! k! a= E= O= P= t= T u U",
    "flock 1 s e x u n o F w= E= c# h! V! shared exclusive unlock nonblock nb close no-fork \
     verbose wait= timeout= conflict-exit-code= command#",
    "strace 0 c C d D f F i k n N q r t T v w x y Y z Z A h! V! a= b= e= E% I= o= O= p= P= s= S= u= \
     U= X= follow-forks output-separately summary summary-only no-abbrev instruction-pointer \
     stack-traces syscall-number successful-only failed-only seccomp-bpf kill-on-exit \
     output-append-mode quiet? silent? decode-fds? syscall-times? absolute-timestamps? \
     relative-timestamps? strings-in-hex? daemonize? output= trace= string-limit= columns= \
     signal= status= env% user= argv0= trace-path= detach-on= interruptible= attach= inject= fault=",
    "ltrace 0 b c C f i L S t T r h! V! a= A= D= e= F= l= n= o= p= s= u= w= x= X= demangle indent= \
     output= library= config=",
    "xvfb-run 0 a l e= f= n= p= s= w= h! auto-servernum listen-tcp error-file= auth-file= \
     server-num= xauth-protocol= server-args= wait=",
    "dbus-run-session 0 config-file= dbus-daemon#",
    "catchsegv 0",
    "eatmydata 0",
    "fakeroot 0 u i= s= b= l# lib# faked# unknown-is-real",
    "unbuffer 0 p",
    "numactl 0 a l b i= w= P= p= N= C= m= s! H! all localalloc balancing interleave= \
     weighted-interleave= preferred= preferred-many= membind= cpunodebind= physcpubind= show! \
     hardware!",
    "cpulimit 0 z i v b f m q l= c= p! P! e! limit= cpu= lazy include-children verbose background \
     foreground monitor-forks pid! path! exe! h!",
    "faketime 1 f m p= exclude-monotonic",
    "tini 0 s v vv vvv g w l p= e=",
    "dumb-init 0 c v r= single-child verbose rewrite= V!",
    "gosu 1",
    "su-exec 1",
    "setuidgid 1",
    "exec 0 c l a#",
    "command 0 p v! V!",
    "builtin 0",
    "nocorrect 0",
    "noglob 0",
    "uname26 0 R v h! V! addr-no-randomize verbose",
    "chronic 0 v e",
    "systemd-cat 0 t= p= identifier= priority= stderr-priority= level-prefix=",
    "logsave 1 a s v",
    "ifne 0 n",
    "annotate-output 0",
    "sccache 0 s! show-stats! z! start-server! stop-server!",
    "ccache 0 s! C! z! show-stats! clear! zero-stats! M! max-size!",
    "distcc 0",
    "heaptrack 0 o= d! a! r",
    "caffeinate 0 d i m s u t= w=",
    "gtimeout 1 f p v k= s= foreground preserve-status verbose kill-after= signal=",
    "genv 0 i 0 v u= C/ S# ignore-environment null debug unset= chdir/ split-string#",
    "sshpass 0 p= f= d= P= e v",
    "hyperfine 0 w= m= M= r= i N s| p| c| n= L= P# D= S| u= warmup= min-runs= max-runs= runs= setup| prepare| \
     cleanup| conclude| C| reference| reference-name= command-name= parameter-list= parameter-scan# \
     parameter-step-size= shell| style= sort= time-unit= export-asciidoc= export-csv= export-json= \
     export-markdown= export-orgmode= show-output output= input= ignore-failure? \
     min-benchmarking-time=",
    "npx 0 y q yes no no-install quiet ignore-existing p= package= c| call| w= workspace= prefix/",
    "bunx 0 bun p= package=",
    "uvx 0 from= with= p= python= q quiet isolated",
    "pipx:run 0 spec= python= no-cache verbose pip-args=",
    "uv:run 0 q v m# module# s# script# with= with-editable= with-requirements= p= python= group= \
     extra= package= env-file# project= directory/ only-group= no-group= index= all-extras \
     all-groups all-packages frozen locked no-sync no-dev dev only-dev isolated exact offline \
     no-project no-config quiet verbose active no-env-file refresh upgrade n no-cache",
    "npm:exec 0 y yes no p= package= c| call| w= workspace= workspaces q quiet",
    "npm:x 0 y yes no p= package= c| call| w= workspace= workspaces q quiet",
    "pnpm:exec 0 r recursive parallel c# shell-mode# resume-from= report-summary",
    "pnpm:dlx 0 package= c# shell-mode# silent s",
    "yarn:exec 0",
    "yarn:dlx 0 p= package= q quiet",
    "direnv:exec 1",
    "mise:x 0 j= jobs= c| command| raw q quiet C/ cd/",
    "mise:exec 0 j= jobs= c| command| raw q quiet C/ cd/",
    "asdf:exec 0",
    "rbenv:exec 0",
    "pyenv:exec 0",
    "nodenv:exec 0",
    "bundle:exec 0 keep-file-descriptors gemfile=",
    "poetry:run 0 q v quiet verbose n no-interaction",
    "pipenv:run 0",
    "pdm:run 0 s p= project= q v",
    "rye:run 0 l list! f= pyproject=",
    "hatch:run 0",
    "conda:run 0 n= name= p= prefix= no-capture-output live-stream v cwd/",
    "cmake:env 0 unset= modify%",
    "cmake:time 0",
    "cmake:chdir 1",
    "op:run 0 env-file# no-masking account=",
    "doppler:run 0 p= project= c= config= command| t= token=",
    "aws-vault:exec 1 n d= duration= j json no-session region= s server",
    "rr:record 0 n h no-syscall-buffer chaos o= w wait",
    "samply:record 0 o= output= save-only s n no-open r= rate= d= duration=",
];

/// Wrappers that also run programs from packages; an allow list must name them, too.
const RUNNERS: [&str; 21] = [
    "npx",
    "bunx",
    "uvx",
    "pipx:run",
    "uv:run",
    "npm:exec",
    "npm:x",
    "pnpm:exec",
    "pnpm:dlx",
    "yarn:exec",
    "yarn:dlx",
    "bundle:exec",
    "poetry:run",
    "pipenv:run",
    "pdm:run",
    "rye:run",
    "hatch:run",
    "conda:run",
    "op:run",
    "doppler:run",
    "aws-vault:exec",
];

/// Other names of `setarch`, which have no operand.
const ARCHITECTURES: [&str; 13] = [
    "linux32", "linux64", "x86_64", "i386", "i486", "i586", "i686", "ppc", "ppc32", "ppc64",
    "aarch64", "s390", "s390x",
];

/// Wrappers that change the user, or what a command may access: an allow list must name them, too.
const POWERFUL: [&str; 11] = [
    "sudo",
    "doas",
    "setpriv",
    "ssh-agent",
    "strace",
    "ltrace",
    "gosu",
    "su-exec",
    "setuidgid",
    "fakeroot",
    "xvfb-run",
];

#[derive(Debug, Clone, Copy)]
pub(super) struct Wrapper {
    pub(super) name: &'static str,
    operands: usize,
    options: &'static str,
}

/// The parsed words of a wrapper.
#[derive(Debug, Default)]
pub(super) struct Call {
    /// Options by their listed name, without dashes.
    pub(super) options: Vec<(&'static str, Option<String>)>,
    /// Variables that are set, and their value if it is known.
    pub(super) assigns: Vec<(String, Option<String>)>,
    /// Directories that it changes to, in order.
    pub(super) directories: Vec<String>,
    /// Lines for a shell that are run, too.
    pub(super) lines: Vec<String>,
    /// Inherited variables in unquoted assignments, where a shell splits words.
    pub(super) split_variables: Vec<String>,
    /// The position of the command.
    pub(super) start: Option<usize>,
    /// An option prevents that anything is started.
    pub(super) ended: bool,
}

/// The option or word that hides what would be started.
pub(super) struct Hidden(pub(super) String);

/// Looked up for every command, mostly without a match.
static BY_NAME: LazyLock<HashMap<&str, &str>> =
    LazyLock::new(|| WRAPPERS.iter().filter_map(|line| line.split_once(' ')).collect());

static WITH_SUBCOMMANDS: LazyLock<HashSet<&str>> =
    LazyLock::new(|| BY_NAME.keys().filter_map(|name| Some(name.split_once(':')?.0)).collect());

impl Wrapper {
    pub(super) fn named(name: &str) -> Option<Self> {
        let known = if ARCHITECTURES.contains(&name) { "uname26" } else { name };
        let (name, rest) = BY_NAME.get_key_value(known)?;
        let (operands, options) = rest.split_once(' ').unwrap_or((rest, ""));
        Some(Self { name, operands: operands.parse().ok()?, options })
    }

    /// Whether a program runs what follows some of its subcommands.
    pub(super) fn has_subcommands(name: &str) -> bool {
        WITH_SUBCOMMANDS.contains(name)
    }

    pub(super) fn is_powerful(&self) -> bool {
        POWERFUL.contains(&self.name) || self.is_runner()
    }

    /// Whether it runs programs from packages.
    pub(super) fn is_runner(&self) -> bool {
        RUNNERS.contains(&self.name)
    }

    /// Whether the wrapper starts a shell without a command.
    pub(super) fn falls_back_to_a_shell(&self) -> bool {
        matches!(self.name, "setarch" | "uname26" | "fakeroot")
    }

    fn takes_assignments(&self) -> bool {
        matches!(self.name, "env" | "genv" | "sudo" | "cmake:env")
    }

    pub(super) fn read(&self, words: &[Word]) -> Result<Call, Hidden> {
        let mut call = Call::default();
        let mut at = 0;
        if self.name == "setarch" && words.first().is_some_and(|word| !word.lead().starts_with('-'))
        {
            at = 1;
        }
        while let Some(word) = words.get(at) {
            let lead = word.lead();
            let Some(text) = word.text() else {
                if self.takes_assignments() && lead.contains('=') && !lead.starts_with('-') {
                    break;
                }
                return Err(Hidden(word.written()));
            };
            at += 1;
            if text == "--" {
                break;
            }
            if self.name == "nice" && is_niceness(&text) {
                continue;
            }
            if text == "-" && self.name == "env" {
                call.options.push(("i", None));
            } else if let Some(long) = text.strip_prefix("--") {
                at += self.long(long, words.get(at), &mut call)?;
            } else if let Some(letters) = text.strip_prefix('-').filter(|rest| !rest.is_empty()) {
                at += self.letters(letters, words.get(at), &mut call)?;
            } else {
                at -= 1;
                break;
            }
            if call.options.last().is_some_and(|(name, _)| self.ends(name)) {
                call.ended = true;
                return Ok(call);
            }
        }
        if self.takes_assignments() {
            // Anything with a `=` is an assignment, whatever precedes it.
            while let Some((name, _)) = words.get(at).map(Word::lead).as_deref().and_then(|lead| {
                lead.split_once('=').map(|(name, rest)| (name.to_owned(), rest.to_owned()))
            }) {
                if words[at].is_split_here() {
                    return Err(Hidden(words[at].written()));
                }
                if words[at].is_several() {
                    call.split_variables.extend(words[at].variables().map(str::to_owned));
                }
                let value = words[at].text().map(|text| text[name.len() + 1..].to_owned());
                call.assigns.push((name, value));
                at += 1;
            }
        }
        for operand in words.iter().skip(at).take(self.operands) {
            if operand.is_several() {
                return Err(Hidden(operand.written()));
            }
        }
        at += self.operands;
        call.start = (at < words.len()).then_some(at);
        Ok(call)
    }

    /// A long option, which may be abbreviated; returns how many further words it takes.
    fn long(&self, text: &str, next: Option<&Word>, call: &mut Call) -> Result<usize, Hidden> {
        let (given, value) =
            text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let hidden = || Hidden(format!("--{given}"));
        let long = || {
            let listed = self.options.split_whitespace().chain(["help!", "version!"]);
            listed.filter(|option| bare(option).len() > 1)
        };
        let exact = long().find(|option| bare(option) == given);
        let mut shortened = long().filter(|option| bare(option).starts_with(given));
        let option = match exact {
            Some(option) => option,
            None => shortened.next().filter(|_| shortened.next().is_none()).ok_or_else(hidden)?,
        };
        if option.ends_with('?') || value.is_some() {
            return self.took(option, value.map(str::to_owned), call).map(|()| 0);
        }
        if !takes_value(option) {
            return self.took(option, None, call).map(|()| 0);
        }
        let value = next.map(|next| next.text().ok_or_else(hidden)).transpose()?;
        self.took(option, value, call).map(|()| 1)
    }

    /// A group of short options; returns how many further words it takes.
    fn letters(
        &self,
        letters: &str,
        next: Option<&Word>,
        call: &mut Call,
    ) -> Result<usize, Hidden> {
        for (index, letter) in letters.char_indices() {
            let hidden = || Hidden(format!("-{letter}"));
            let mut listed = self.options.split_whitespace();
            let option =
                listed.find(|option| bare(option).chars().eq([letter])).ok_or_else(hidden)?;
            let attached = &letters[index + letter.len_utf8()..];
            if option.ends_with('?') {
                let value = Some(attached.to_owned()).filter(|value| !value.is_empty());
                return self.took(option, value, call).map(|()| 0);
            }
            if takes_value(option) {
                if !attached.is_empty() {
                    return self.took(option, Some(attached.to_owned()), call).map(|()| 0);
                }
                let value = next.map(|next| next.text().ok_or_else(hidden)).transpose()?;
                return self.took(option, value, call).map(|()| 1);
            }
            self.took(option, None, call)?;
        }
        Ok(0)
    }

    fn took(
        &self,
        option: &'static str,
        value: Option<String>,
        call: &mut Call,
    ) -> Result<(), Hidden> {
        let name = bare(option);
        let value = value.unwrap_or_default();
        match option.chars().last() {
            Some('#') => {
                let dashes = if name.len() > 1 { "--" } else { "-" };
                return Err(Hidden(format!("{dashes}{name}")));
            }
            Some('/') => call.directories.push(value.clone()),
            Some('|') => call.lines.push(value.clone()),
            Some('%') => {
                let (name, value) = value.split_once('=').unwrap_or((&value, ""));
                call.assigns.push((name.to_owned(), Some(value.to_owned())));
            }
            _ => {}
        }
        call.options.push((name, Some(value)));
        Ok(())
    }

    fn ends(&self, name: &str) -> bool {
        ["help", "version"].contains(&name)
            || self
                .options
                .split_whitespace()
                .any(|option| option.ends_with('!') && bare(option) == name)
    }
}

impl Call {
    /// The value of one of these options, the last one given.
    pub(super) fn value(&self, names: &[&str]) -> Option<&str> {
        let mut given = self.options.iter().rev();
        let (_, value) = given.find(|(name, _)| names.contains(name))?;
        value.as_deref()
    }

    pub(super) fn has(&self, names: &[&str]) -> bool {
        self.value(names).is_some() || self.options.iter().any(|(name, _)| names.contains(name))
    }
}

/// An option without the marks after its name.
fn bare(option: &'static str) -> &'static str {
    // A single character is a name, even if it is one of the marks.
    if option.len() == 1 {
        option
    } else {
        option.trim_end_matches(['=', '?', '/', '%', '!', '#', '|'])
    }
}

fn takes_value(option: &str) -> bool {
    option.len() > 1 && option.ends_with(['=', '/', '%', '|'])
}

/// `-5`, `--5` and `-+5`, which `nice` reads as a number.
fn is_niceness(word: &str) -> bool {
    let digits = word.strip_prefix('-').map(|rest| rest.trim_start_matches(['-', '+']));
    digits.is_some_and(|digits| !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit()))
}
