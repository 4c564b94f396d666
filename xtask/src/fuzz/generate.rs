//! Lines from a grammar: a forbidden command, spelled differently, wrapped in something
//! that runs it, anywhere in a line.

use super::case::{Case, Rules};
use super::mutate::Random;

/// How deep a line is nested.
const DEPTH: usize = 4;

/// Common programs that run their arguments.
const WRAPPERS: [&str; 37] = [
    "env",
    "env A=1",
    "env -i PATH=\"$PATH\"",
    "env -u A",
    "command",
    "command -p",
    "exec",
    "builtin command",
    "nice",
    "nice -n 5",
    "nohup",
    "setsid",
    "setsid -w",
    "timeout 2",
    "timeout -k 1 2",
    "stdbuf -o0",
    "time",
    "time -p",
    "ionice -c 3",
    "taskset 1",
    "chrt -o 0",
    "setarch -R",
    "prlimit --nofile=100",
    "flock lock",
    "choom -n 0 --",
    "xargs",
    "xargs -r",
    "find . -maxdepth 0 -exec",
    "cmake -E env",
    "cmake -E time",
    "direnv exec .",
    "uv run",
    "mise x --",
    "busybox env",
    "bb nice",
    "bb sh -c '\"$@\"' x",
    "!",
];

/// Where a command can occur in a line; `@` is the command.
const PLACES: [&str; 96] = [
    "@",
    "@; true",
    "true; @",
    "true && @",
    "false || @",
    "true | @",
    "@ | cat",
    "(@)",
    "{ @; }",
    "( (@) )",
    "if @; then :; fi",
    "if true; then @; fi",
    "if false; then :; else @; fi",
    "for i in 1; do @; done",
    "for i in $(@); do :; done",
    "while @; do break; done",
    "until @; do break; done",
    "case a in a) @;; esac",
    "case a in (b) ;; *) @ ;; esac",
    "case $(@) in *) ;; esac",
    "f() { @; }; f",
    "f() (@); f",
    "f() if @; then :; fi; f",
    "function f { @; }; f",
    "echo $(@)",
    "echo `@`",
    "echo \"$(@)\"",
    "echo \"a`@`b\"",
    "x=$(@)",
    "x=$(@) true",
    "export x=$(@)",
    "echo ${x:-$(@)}",
    "echo ${x:=$(@)}",
    "echo \"${x:-`@`}\"",
    ": ${x?$(@)}",
    "echo ${x+$(@)}; x=1; echo ${x+$(@)}",
    "echo $((1 + $(@ >&2; echo 1)))",
    "cat <<EOF\n$(@)\nEOF",
    "cat <<EOF\n`@`\nEOF",
    "cat <<-EOF\n\t$(@)\n\tEOF",
    "cat <<'A' <<B\n$(x)\nA\n$(@)\nB",
    "cat <<< \"$(@)\"",
    "cat <(@)",
    "echo a > >(@)",
    "@ > out",
    "> out @",
    "2>&1 @",
    "@ 2>&1 | cat",
    "@ &> out",
    "@ & wait",
    "trap '@' EXIT",
    "trap '@' 0; exit",
    "trap \"@\" EXIT",
    "eval '@'",
    "eval \"@\"",
    "eval eval '@'",
    "eval \"$(echo '@')\"",
    "x='@'; eval \"$x\"",
    "x='@'; $x",
    "sh -c '@'",
    "sh -ec '@'",
    "bash -c \"@\"",
    "bash -o errexit -c '@'",
    "bash --norc -c '@'",
    "dash -c '@'",
    "echo '@' | sh",
    "sh <<'EOF'\n@\nEOF",
    "sh -s <<'EOF'\n@\nEOF",
    ". /dev/stdin <<'EOF'\n@\nEOF",
    "source /dev/stdin <<'EOF'\n@\nEOF",
    "bash <<< '@'",
    "bash <(echo '@')",
    "alias t='@'\nt",
    "alias t='@'; eval t",
    "shopt -s expand_aliases\nalias t='@'\nt",
    "coproc @; wait",
    "[[ -n $(@) ]]",
    "[ -n \"$(@)\" ]",
    "test -v 'a[$(@)]'",
    "printf -v 'a[$(@)]' x",
    "unset 'a[$(@)]'",
    "read 'a[$(@)]' < file",
    "let 'a[$(@)]=1'",
    "((a[$(@)]=1))",
    "a[$(@)]=1",
    "declare 'a[$(@)]=1'",
    "echo ${a[$(@)]}",
    "x='a[$(@)]'; ((x))",
    "PS4='$(@)'; set -x; :",
    "PROMPT_COMMAND='@' bash -i < file",
    "exec 3< <(@); cat <&3",
    "set -- '@'; eval \"$1\"",
    "hyperfine '@'",
    "wrapline '@'",
    "mapfile -C '@' -c 1 x < file",
    "complete -C '@' x; compgen -C '@' x",
];

/// Ways to first give a program another name; `@` is its name and `#` the arguments.
const RENAMED: [&str; 16] = [
    "ln -s \"$(command -v @)\" gg; ./gg #",
    "ln -s \"$(command -v @)\" gg && ./gg #",
    "cp \"$(command -v @)\" gg; ./gg #",
    "cat \"$(command -v @)\" > gg; chmod +x gg; ./gg #",
    "mkdir b; ln -s \"$(command -v @)\" b/gg; PATH=b:$PATH; gg #",
    "mkdir b; ln -s \"$(command -v @)\" b/ls; PATH=$PWD/b:$PATH ls #",
    "ln -s \"$(command -v @)\" gg; PATH=.:$PATH gg #",
    "cp \"$(which @)\" cat; PATH=\"$PWD:$PATH\"; cat #",
    "install -m 755 \"$(command -v @)\" gg; ./gg #",
    "tee gg < \"$(command -v @)\"; chmod 755 gg; ./gg #",
    "dd if=\"$(command -v @)\" of=gg; chmod 755 gg; ./gg #",
    "hash -p \"$(command -v @)\" gg; gg #",
    "\"$(command -v @)\" #",
    "cd \"$(dirname \"$(command -v @)\")\" && ./@ #",
    "g=$(command -v @); $g #",
    "exec -a x @ #",
];

/// Ways to push other than a plain `git push`.
const PUSHES: [&str; 16] = [
    "/usr/lib/git-core/git-push -q origin main",
    "/usr/lib/git-core/git push -q origin main",
    "\"$(git --exec-path)/git-push\" -q origin main",
    "git-push -q origin main",
    "PATH=/usr/lib/git-core:$PATH git-push -q origin main",
    "git -C . push -q origin main",
    "git --git-dir=.git push -q origin main",
    "git -c alias.p=push p -q origin main",
    "git -c alias.p='!git push -q origin main' p",
    "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=alias.p GIT_CONFIG_VALUE_0=push git p -q origin main",
    "git submodule foreach 'git push'; git bisect run git push -q origin main",
    "git rebase -x 'git push -q origin main' HEAD~0",
    "git --no-pager push -q origin main",
    "git -p push -q origin main",
    "git --literal-pathspecs push -q origin HEAD:refs/heads/b",
    "cp -r /usr/lib/git-core c; c/git-push -q origin main",
];

/// Variables that name programs, or settings that do.
const VARIABLES: [&str; 22] = [
    "GIT_EXTERNAL_DIFF",
    "GIT_PAGER",
    "PAGER",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_PROXY_COMMAND",
    "GIT_EDITOR",
    "GIT_ASKPASS",
    "GIT_CONFIG_PARAMETERS",
    "GIT_EXEC_PATH",
    "GIT_CONFIG_GLOBAL",
    "GIT_DIFF_OPTS",
    "LESSOPEN",
    "BASH_ENV",
    "ENV",
    "PROMPT_COMMAND",
    "PS4",
    "SHELL",
    "EDITOR",
    "VISUAL",
    "RUSTC_WRAPPER",
    "LD_PRELOAD",
];

/// Some of them, and a command that starts the named program.
const STARTED_BY: [(&str, &str, &str); 8] = [
    ("GIT_EXTERNAL_DIFF", "trip", "git diff"),
    ("GIT_SSH", "trip", "git fetch ssh://h/r"),
    ("GIT_SSH_COMMAND", "trip push", "git ls-remote ssh://h/r"),
    ("GIT_PROXY_COMMAND", "trip", "git ls-remote git://h/r"),
    ("GIT_CONFIG_VALUE_0", "trip", "git diff"),
    ("RUSTC_WRAPPER", "trip", "cargo build"),
    ("LESSOPEN", "|trip %s", "less file"),
    ("LESSOPEN", "||-trip %s", "less file"),
];

const USES: [&str; 9] = [
    "git diff",
    "git diff HEAD",
    "git log -p",
    "git log --ext-diff -p",
    "git show --ext-diff",
    "git diff --ext-diff | cat",
    "git status",
    "bash -c 'ls'",
    "ls",
];

pub(super) struct Generator {
    /// Programs that run their arguments and exist only here.
    wrappers: Vec<&'static str>,
}

impl Generator {
    pub(super) fn new(wrappers: Vec<&'static str>) -> Self {
        Self { wrappers }
    }

    pub(super) fn case(&self, random: &mut Random) -> Case {
        let rules = Rules::ALL[random.below(Rules::ALL.len())];
        let mut set = Vec::new();
        let (program, arguments) = match rules {
            Rules::DenyGitPush => ("git", "push -q origin main"),
            _ => ("trip", "push"),
        };
        let mut text = match random.below(9) {
            8 => self.command(random.pick(&other_names(program)), arguments, random),
            0 => random.pick(&RENAMED).replace('@', program).replace('#', arguments),
            1 if rules == Rules::DenyGitPush => random.pick(&PUSHES).to_owned(),
            1 | 2 if rules == Rules::AllowSome => variable(random, &mut set),
            _ => self.command(program, arguments, random),
        };
        for _ in 0..random.below(DEPTH) {
            let place = random.pick(&PLACES);
            // A quote inside of quotes is a different line, which is wanted occasionally.
            let inner = match place.contains("'@'") && !random.one_in(4) {
                true => text.replace('\'', "'\\''"),
                false => text,
            };
            text = place.replace('@', &inner);
        }
        Case { rules, set, text }
    }

    /// A call of a program, spelled differently and with others before it.
    fn command(&self, program: &str, arguments: &str, random: &mut Random) -> String {
        let mut before = String::new();
        let mut words = vec![spelled(program, &mut before, random)];
        for word in arguments.split(' ') {
            words.push(match random.one_in(4) {
                true => spelled(word, &mut before, random),
                false => word.to_owned(),
            });
        }
        let mut text = match random.below(12) {
            0 => format!("echo {arguments} | xargs {}", words[0]),
            1 => format!("echo {program} | xargs -I{{}} {{}} {arguments}"),
            2 => format!("set -- {}; \"$@\"", words.join(" ")),
            3 => format!("set -- {}; $*", words.join(" ")),
            4 => format!("{{{program},{}}}", arguments.replace(' ', ",")),
            5 => format!(
                "read -r a < words; $a; IFS=_; a={program}_{}; $a",
                arguments.replace(' ', "_")
            ),
            6 => format!("a=({}); \"${{a[@]}}\"", words.join(" ")),
            _ => words.join(" "),
        };
        for _ in 0..random.below(3) {
            let wrapper = match random.one_in(3) {
                true => self.wrappers[random.below(self.wrappers.len())],
                false => random.pick(&WRAPPERS),
            };
            let end = if wrapper.starts_with("find") { " \\;" } else { "" };
            text = format!("{wrapper} {text}{end}");
        }
        before + &text
    }
}

/// Links to a program and copies of it that exist before the line runs.
fn other_names(program: &str) -> [&'static str; 2] {
    match program {
        "git" => ["glink", "gcopy"],
        _ => ["tlink", "tcopy"],
    }
}

/// A variable that names the forbidden program, set in one way or another, and something that uses
/// it.
fn variable(random: &mut Random, set: &mut Vec<(String, String)>) -> String {
    let (name, value, used) = match random.one_in(2) {
        true => STARTED_BY[random.below(STARTED_BY.len())],
        false => {
            let values = ["trip", "trip push", "sh -c 'trip push'", "|trip %s", "$(trip)"];
            (random.pick(&VARIABLES), random.pick(&values), random.pick(&USES))
        }
    };
    let mut assigned = vec![(name, value)];
    // A setting of git by variables consists of three of them.
    if name == "GIT_CONFIG_VALUE_0" {
        assigned.extend([("GIT_CONFIG_COUNT", "1"), ("GIT_CONFIG_KEY_0", "diff.external")]);
    }
    let each = |make: &dyn Fn(&str, &str) -> String| -> String {
        assigned.iter().map(|(name, value)| make(name, value)).collect()
    };
    match random.below(7) {
        0 => each(&|name, value| format!("{name}=\"{value}\" ")) + used,
        1 => each(&|name, value| format!("export {name}='{value}'; ")) + used,
        2 => format!("env {}{used}", each(&|name, value| format!("{name}='{value}' "))),
        3 => each(&|name, value| format!("x='{value}'; export {name}=\"$x\"; ")) + used,
        4 => each(&|name, value| format!("declare -x {name}='{value}'; ")) + used,
        5 => each(&|name, value| format!("{name}='{value}'; export {name}; ")) + used,
        _ => {
            let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            set.extend(assigned.iter().map(owned));
            used.to_owned()
        }
    }
}

/// A different spelling of a word for a shell. Preparations are appended to `before`.
fn spelled(word: &str, before: &mut String, random: &mut Random) -> String {
    let (first, rest) = word.split_at(1);
    match random.below(26) {
        0 => format!("'{word}'"),
        1 => format!("\"{word}\""),
        2 => format!("\\{word}"),
        3 => format!("{first}''{rest}"),
        4 => format!("{first}\"{rest}\""),
        5 => format!("'{first}'{rest}"),
        6 => format!("$'{word}'"),
        7 => format!("$'\\x{:02x}{rest}'", first.as_bytes()[0]),
        8 => format!("$(echo {word})"),
        9 => format!("`echo {word}`"),
        10 => format!("${{no:-{word}}}"),
        11 => format!("{first}${{no}}{rest}"),
        12 => {
            before.push_str(&format!("x={word}; "));
            random
                .pick(&["$x", "\"$x\"", "${x}", "${x#a}", "${x%%b}", "${x:0}", "${x-a}"])
                .to_owned()
        }
        13 => {
            before.push_str(&format!("x={first}; y={rest}; "));
            "$x$y".to_owned()
        }
        14 => {
            before.push_str(&format!("x=a{word}; "));
            "${x#a}".to_owned()
        }
        15 => {
            before.push_str(&format!("read x <<E\n{word}\nE\n"));
            "$x".to_owned()
        }
        16 => format!("{first}\\\n{rest}"),
        17 => format!("$\"{word}\""),
        18 => format!("{{{word},}}"),
        19 => {
            before.push_str(&format!("printf -v x {word}; "));
            "$x".to_owned()
        }
        20 => {
            before.push_str(&format!("declare -n x=y; y={word}; "));
            "$x".to_owned()
        }
        21 => {
            before.push_str(&format!("x={word}; y=x; "));
            "${!y}".to_owned()
        }
        22 => {
            before.push_str(&format!("for x in a {word}; do :; done; "));
            "$x".to_owned()
        }
        23 => {
            before.push_str(&format!("x=({word}); "));
            "${x[0]}".to_owned()
        }
        24 => {
            before.push_str(&format!("x={}; ", word.to_uppercase()));
            "${x,,}".to_owned()
        }
        _ => word.to_owned(),
    }
}
