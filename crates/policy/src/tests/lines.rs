//! Lines for a shell: every command in them counts, and a line that cannot be parsed evades no rule.

use super::*;

#[test]
fn a_denied_command_is_found_wherever_a_line_has_it() {
    let (dir, policy) = policy(&[], &["rm", "git push"], true);
    for denied in [
        "rm victim",
        "for i in victim; do rm $i; done",
        "for i\nin victim\ndo\nrm $i\ndone",
        "for i do rm victim; done",
        "if true; then rm victim; fi",
        "if false; then :; elif rm victim; then :; fi",
        "if false; then :; else rm victim; fi",
        "if (true) then rm victim; fi",
        "{ rm victim; }",
        "( rm victim )",
        "(rm victim)",
        "! rm victim",
        "! ! rm victim",
        "while :; do rm victim; break; done",
        "until rm victim; do :; done",
        "command rm victim",
        "command -p -- rm victim",
        "builtin command rm victim",
        "exec rm victim",
        "exec -c rm victim",
        "eval rm victim",
        "eval 'rm' victim",
        "eval \"rm victim\"",
        "eval -- 'true; rm victim'",
        "eval eval eval rm victim",
        "\\rm victim",
        "r\\m victim",
        "'rm' victim",
        "\"r\"m victim",
        "true && \\\n rm victim",
        "true &&\\\nrm victim",
        "env \\\n A=1 \\\n rm \\\n victim",
        ">o rm victim",
        "<i >o 2>&1 rm victim",
        "2>/dev/null rm victim",
        "echo a >o; rm victim",
        "echo \"$(rm victim)\"",
        "echo \"`rm victim`\"",
        "echo $(rm victim)",
        "echo `rm victim`",
        "echo `echo \\`rm victim\\``",
        "echo \"$(echo \"$(rm victim)\")\"",
        "echo ${x:-$(rm victim)}",
        "echo \"${x:-`rm victim`}\"",
        "x=$(rm victim)",
        "x=$(rm victim) true",
        "echo a > \"$(rm victim)\"",
        "f() { rm victim; }; f",
        "f () (rm victim)",
        "f()\n{\nrm victim\n}\nf",
        "case x in x) rm victim;; esac",
        "case x in (a|b) true;; *) rm victim ;; esac",
        "case $(rm victim) in esac",
        "case x in\n  x)\n    rm victim\nesac",
        "trap \"rm victim\" EXIT; true",
        "trap -- 'rm victim' EXIT",
        "echo \\' ; rm victim ; echo \\'",
        "echo \"a\\\"\" ; rm victim; echo \"\\\"b\"",
        "echo a#b; rm victim",
        "true # it's fine\nrm victim",
        "true || rm victim",
        "true |\nrm victim",
        "true |& rm victim",
        "true & rm victim",
        "true &>/dev/null; rm victim",
        "true\nrm victim",
        "time rm victim",
        "time -p rm victim",
        "time { rm victim; }",
        "time time trap 'rm victim' EXIT",
        "time ! time eval 'rm victim'",
        "true | time eval 'rm victim'",
        "A=1 B=$C rm victim",
        "A+=1 rm victim",
        "cat <<EOF\n$(rm victim)\nEOF",
        "cat <<-EOF\n\t`rm victim`\n\tEOF",
        "cat <<EOF\nit's\nEOF\nrm victim",
        "cat <<'EOF' | tee x\n`\nEOF\nrm victim",
        "cat <<A <<B\na\nA\nb\nB\nrm victim",
        "cat <(rm victim)",
        "true < <(rm victim)",
        "sh -c 'rm victim'",
        "bash -euo pipefail -c 'rm victim'",
        "sh -c 'sh -c \"rm victim\"'",
        "ls | xargs rm",
        "find . -exec rm {} \\;",
        "env A=1 rm victim",
        "[ -e x ] && rm victim",
        "[[ -e x ]] && rm victim",
        "echo \"$((1 + 2))\" && rm victim",
        "set -e; export A=1; rm victim",
        "cd sub && rm victim",
        "x=rm; $x victim",
        "x=rm; \"$x\" victim",
        "x='rm victim'; $x",
        "for p in ls rm; do $p victim; done",
        "x=ls; for i in 1 2; do $x victim; x=rm; done",
        "x=ls; f() { x=rm; }; f; $x victim",
        "x=rm; f() { $x victim; }; f",
        "x=ls; true && x=rm; $x victim",
        "a=(b $(rm victim)); true",
        "function f { rm victim; }; f",
        "function f() { rm victim; }; f",
        "((rm victim))",
        "( (rm victim))",
        "for ((i = 0; i < 3; i++)); do rm victim; done",
        "echo $'a\\n' && rm victim",
        "echo ${a[0]} && rm victim",
        "git -C x push",
        "git \\push",
    ] {
        let why = line(&policy, dir.path(), denied).expect_err(denied);
        assert!(is_denied(&why), "{denied}: {why:?}");
    }
}

#[test]
fn unpredictable_commands_are_refused_if_rules_exist() {
    let unpredictable = [
        "x=$(echo rm); $x victim",
        "x=r; y=${x}m; $y victim",
        "(x=ls); $x victim",
        "x=ls | true; $x victim",
        "x=ls & $x victim",
        "true && x=ls; $x victim",
        "x=ls; read x; $x victim",
        "x=ls; read -r y x <<< 'a rm'; $x victim",
        "x=ls; eval x=rm; $x victim",
        "x=ls; . ./set.sh; $x victim",
        "x=ls; unset x; $x victim",
        "x=ls; x+=m; $x victim",
        "x=ls; mapfile -t x < y; $x victim",
        "x=ls; printf -v x rm; $x victim",
        "x=ls; IFS=s; $x victim",
        "f() { $x victim; }; x=ls; f; x=rm; f",
        "y=eval; x=ls; $y x=rm; $x victim",
        "for x in ls; do true; done; $x victim",
        "$(echo rm) victim",
        "`echo rm` victim",
        "\"$x\" victim",
        "${x} victim",
        "/bin/r* victim",
        "/bin/r? victim",
        "/bin/[r]m victim",
        "{rm,victim}",
        "~/rm victim",
        "f() { \"$@\"; }; f rm victim",
        "set -- rm victim; \"$@\"",
        "sh -c '\"$@\"' _ rm victim",
        "sh -c \"$x\"",
        "eval \"$x\"",
        "trap \"$x\" EXIT",
        "r\\\nm victim",
        "!\\\n rm victim",
        "A\\\n=1 rm victim",
        "2\\\n>o rm victim",
        "true &\\\n>o rm",
        "$'rm' victim",
        "$'\\x72m' victim",
        "r$\"m\" victim",
        "alias ls=rm\nls victim",
        "coproc rm victim",
        "select x in a; do true; done",
        "echo ${!x}",
        "echo ${x@P}",
        "x='a[$(rm victim)]'; echo $((x))",
        "x='`rm victim`'",
        "test -v 'a[$(rm victim)]'",
        "unset 'a[$(rm victim)]'",
        "declare -i x=1",
        "hash -p /bin/rm ls; ls victim",
        "{fd}>o true",
        "12>o true",
        "true &>o victim",
        "echo 'a",
        "echo \"a",
        "echo `a",
        "echo $(a",
        "echo ${a",
        "if true; then ls",
        "{ ls",
        "ls )",
        "ls ;; ls",
        "ls &&",
        "| ls",
        "ls; ; ls",
        "fi",
        "cat <<EOF\nrm",
        "cat <<EOF\na\\\nEOF\nEOF",
        "true \\",
        "sh < script",
        "echo rm victim | sh",
        "bash <<EOF\nrm victim\nEOF",
        ". /dev/stdin",
        ". <(echo rm victim)",
        "bash <(echo rm victim)",
        "zsh -c 'ls'",
        "fish -c 'ls'",
        "ls | xargs env",
        "ls | xargs -I{} {} victim",
        "find $x",
        "env $x ls",
        "timeout $x ls",
        "PATH=$x:$PATH ls",
        "export PATH=\"$x\"; ls",
        "read PATH; ls",
        "for PATH in /x; do ls; done",
        "cd \"$x\" && ./ls",
        "for d in a b; do cd a; ./ls; done",
        "eval 'cd a'; ./ls",
    ];
    let (dir, mut policy) = policy(&[], &["rm"], true);
    for text in unpredictable {
        let why = line(&policy, dir.path(), text).expect_err(text);
        assert!(is_unpredictable(&why), "{text}: {why:?}");
    }
    let deep = format!("{}rm victim{}", "$(".repeat(100), ")".repeat(100));
    assert!(line(&policy, dir.path(), &deep).is_err());
    policy.allow = vec![Rule::parse("*", dir.path()).unwrap()];
    policy.deny.clear();
    for text in unpredictable {
        assert!(line(&policy, dir.path(), text).is_err(), "{text}");
    }
    // Without rules an allowed shell may run anything.
    policy.allow.clear();
    for text in unpredictable {
        assert_eq!(line(&policy, dir.path(), text), Ok(()), "{text}");
    }
}

#[test]
fn a_rule_on_arguments_considers_their_possible_values() {
    let (dir, policy) = policy(&[], &["git push", "make * @ sub"], true);
    let may_be = PolicyRefusal::MayBeDenied {
        rule: "git push".to_owned(),
        command: "git \"$x\"".to_owned(),
        word: "\"$x\"".to_owned(),
        because: Doubt::Argument,
    };
    assert_eq!(line(&policy, dir.path(), "git \"$x\""), Err(vec![may_be]));
    for text in ["git $x", "git p*", "ls | xargs git", "ls | xargs -I% git p%", "cd $x; make all"] {
        let why = line(&policy, dir.path(), text).expect_err(text);
        assert!(is_unpredictable(&why), "{text}: {why:?}");
    }
    let why = line(&policy, dir.path(), "cd sub; make all").unwrap_err();
    assert!(why.contains(&denied("make * @ sub", "make all")), "{why:?}");
    for fine in [
        "git add *.rs",
        "git log \"--since=$x\"",
        "git commit -m \"wip: $x\"",
        "ls $x",
        "make all",
        "ls | xargs -I% git show%",
    ] {
        assert_eq!(line(&policy, dir.path(), fine), Ok(()), "{fine}");
    }
}

#[test]
fn ordinary_lines_pass_rules_that_deny_something_else() {
    let (dir, policy) = policy(&[], &["rm", "curl *evil*"], true);
    for fine in [
        "cargo test 2>&1 | tail -n 20",
        "cd sub && make -j2 && cd .. && ls",
        "(cd sub && make); (cd sub && make test)",
        "for f in *.rs; do echo \"$f\"; done",
        "for f in $(ls); do wc -l \"$f\"; done",
        "while read -r line; do echo \"$line\"; done < file",
        "while read -r line; do echo \"$line\"; done < <(ls)",
        "if [ -f x ]; then cat x; else echo none; fi",
        "[[ -f x ]] || touch x",
        "test \"$x\" = y && echo same",
        "export FOO=$BAR; cargo build",
        "export FOO; FOO=1 cargo build",
        "git commit -m \"a; b\" && git log --oneline | head -3",
        "git commit -m 'remove `rm` and $(rm)'",
        "echo 'rm victim'; echo \"rm victim\"",
        "grep -rn 'rm -rf' . | wc -l",
        "grep rm x # rm y",
        "cat > x <<'EOF'\nrm victim\n`rm`\nEOF\nls",
        "cat <<EOF\n$HOME ${x:-y}\nEOF",
        "python3 - <<'EOF'\nprint('rm')\nEOF",
        "i=0; while [ $i -lt 3 ]; do i=$((i + 1)); done",
        "set -euo pipefail; ls",
        "case $x in a|b) ls;; *) pwd;; esac",
        "trap - EXIT; trap '' INT; trap 'echo bye' EXIT",
        "eval \"echo a\"",
        "find . -name '*.o' -print0 | xargs -0 ls -l",
        "sleep 1 & wait",
        "make &> /dev/null",
        "make > log 2>&1; tail log",
        "echo $((1 + 2)) ${x%.rs} ${x##*/} ${#x} \"$@\" $? $$",
        "printf '%s\\n' a b",
        "awk '{print $1}' x | sort -u",
        "sed -e 's/rm/mv/' x",
        "bash -lc 'cargo test'",
        "bash -euo pipefail -c 'cargo test | tail'",
        "time cargo test",
        "command -v rm",
        "f() { echo \"$1\"; }; f a",
        "npm run build && npm test",
        "echo rm",
        "ls *.rs",
        "echo {a,b}",
        "echo it\\'s",
        "cargo test \\\n  --all \\\n  | tail",
        "echo \"a\\\nb\"",
        "a=1 b=2; echo $a$b",
        "source ./venv/bin/activate && python3 -m pytest",
        "x=ls; $x a; \"$x\" b",
        "for t in ls pwd; do $t; done",
        "function f { true; }; f",
        "((x = 1)); ((i++))",
        "for ((i = 0; i < 3; i++)); do echo $i; done",
        "let x=1",
        "a=(rm victim); echo \"${a[@]}\" ${a[0]} ${#a[@]}",
        "IFS=$'\\n'; echo $'a\\tb'",
        "declare -A map; local x=1; mapfile -t lines < x",
        "echo ${PIPESTATUS[0]}",
    ] {
        assert_eq!(line(&policy, dir.path(), fine), Ok(()), "{fine}");
    }
}

#[test]
fn an_allow_list_holds_for_every_command_of_a_line() {
    let (dir, policy) = policy(&["git status", "./build.sh", "ls"], &[], true);
    script(&dir.path().join("build.sh"));
    script(&dir.path().join("sub/build.sh"));
    script(&dir.path().join("evil/ls"));
    for fine in [
        "ls && git status",
        "git status 2>/dev/null | ls",
        "if ls; then git status; fi",
        "./build.sh && ls *.rs",
        "A=1 ./build.sh",
        "eval ls",
    ] {
        assert_eq!(line(&policy, dir.path(), fine), Ok(()), "{fine}");
    }
    for (refused, refusal) in [
        ("ls; cat x", not_allowed("cat x")),
        ("ls $(cat x)", not_allowed("cat x")),
        ("git $x", not_allowed("git $x")),
        ("git stat*", not_allowed("git stat*")),
        ("PATH=evil ls", not_allowed("ls")),
        ("PATH=evil; ls", not_allowed("ls")),
        ("export PATH=evil; ls", not_allowed("ls")),
        ("cd sub && ./build.sh", not_allowed("./build.sh")),
        ("(cd sub); cd sub; ./build.sh", not_allowed("./build.sh")),
        ("git status > .git/hooks/x", PolicyRefusal::WritesFile(".git/hooks/x".to_owned())),
        ("ls >> build.sh", PolicyRefusal::WritesFile("build.sh".to_owned())),
        ("ls &> build.sh", PolicyRefusal::WritesFile("build.sh".to_owned())),
    ] {
        let why = line(&policy, dir.path(), refused).expect_err(refused);
        assert!(why.contains(&refusal), "{refused}: {why:?}");
    }
}

#[test]
fn lines_that_leave_the_project_or_load_code_are_refused_with_a_shell_too() {
    let (dir, policy) = policy(&[], &[], true);
    for refused in
        ["cd /etc && pwd", "cd sub && cd ../.. && pwd", "(cd ..; pwd)", "command cd /etc"]
    {
        let why = line(&policy, dir.path(), refused).expect_err(refused);
        assert!(is_outside(&why), "{refused}: {why:?}");
    }
    for (refused, variable) in [
        ("LD_PRELOAD=x ls", "LD_PRELOAD"),
        ("export LD_PRELOAD=$x; ls", "LD_PRELOAD"),
        ("for LD_PRELOAD in x; do ls; done", "LD_PRELOAD"),
        ("env 'BASH_FUNC_ls%%=() { rm x; }' bash -c ls", "BASH_FUNC_ls%%"),
    ] {
        let why = line(&policy, dir.path(), refused).expect_err(refused);
        assert!(loads_code(&why, variable), "{refused}: {why:?}");
    }
    assert_eq!(line(&policy, dir.path(), "cd sub; cd ..; ls"), Ok(()));
}

#[test]
fn an_unclosed_quote_is_named_as_the_reason() {
    let (dir, policy) = policy(&[], &[], false);
    let why = typed(&policy, dir.path(), "echo 'a b").unwrap_err();
    assert_eq!(why, [PolicyRefusal::OpenQuote('\'')]);
    let why = typed(&policy, dir.path(), "echo $x; echo 'a b'").unwrap_err();
    let needs = ShellUse::LineNeedsShell {
        line: LineSource::Command,
        why: retake_engine::ShellNeeded::Expanded('$'),
    };
    assert_eq!(why, [PolicyRefusal::ShellOff(needs)]);
}
