//! Transformations of words by shells and programs that must not evade a rule, and ordinary lines that
//! look similar.

use super::*;

fn all_refused(deny: &[&str], lines: &[&str]) {
    let (dir, policy) = policy(&[], deny, true);
    for text in lines {
        assert!(line(&policy, dir.path(), text).is_err(), "{text}");
    }
}

fn all_fine(deny: &[&str], lines: &[&str]) {
    let (dir, policy) = policy(&[], deny, true);
    for text in lines {
        assert_eq!(line(&policy, dir.path(), text), Ok(()), "{text}");
    }
}

#[test]
fn a_variable_that_the_shell_sets_or_changes_has_no_known_value() {
    all_refused(
        &["rm"],
        &[
            "REPLY=ls; read <<< rm; $REPLY x",
            "_=ls; true rm; $_ x",
            "OPTARG=ls; getopts a: x -a rm; $OPTARG x",
            "BASH_REMATCH=ls; [[ rm =~ .* ]]; $BASH_REMATCH x",
            "declare -l x=RM; $x y",
            "declare -l x; x=RM; $x y",
            "readonly x=rm; export x=ls; $x y",
            "x=ls; f() { local -n r=x; r=rm; }; f; $x y",
            "x=ls; read 'x[0]' <<< rm; $x y",
            "x=ls; read x <<< rm; env $x y",
            "x=ls; unset x; env $x rm y",
            "x=rm; echo $(cat <<E\na\nE\nx=ls; $x y)",
            "ba\"$x\"sh <<< 'rm y'",
            "x=ls; declare 'x[0]=rm'; $x y",
            "x=r; export x+=m; $x y",
            "declare 'BASH_CMDS[ls]=/bin/rm'; ls y",
            "shopt -s expand_aliases\nBASH_ALIASES=([ls]=rm)\nls y",
            ": ${BASH_CMDS[ls]:=/bin/rm}; ls y",
        ],
    );
    all_fine(
        &["rm"],
        &[
            "x=ls; $x y",
            "readonly DIR=src; ls \"$DIR\"",
            "declare -r n=3; echo $n",
            "read -r REPLY < f; echo \"$REPLY\"",
            "unset FOO; export BAR=1; ls",
            "x='a b'; ls $x",
            "local_dir=src; ls $local_dir/x",
            "while IFS= read -r f; do ls \"$f\"; done < list",
        ],
    );
}

#[test]
fn text_that_is_evaluated_as_a_number_is_seen_in_pieces() {
    all_refused(
        &["rm"],
        &[
            "x='a[$'; y='(rm z)]'; [[ $x$y -eq 0 ]]",
            "x='a[$'; y='(rm z)]'; z=$x$y; ((z))",
            "x='a[$'; y='(rm z)]'; test -v \"$x$y\"",
            "read -r x <<'E'\na[$(rm z)]\nE\necho $((x))",
            "read -r x <<'E'\na[$(rm z)]\nE\n[[ x -eq 0 ]]",
        ],
    );
    all_fine(
        &["rm"],
        &[
            "n=$(wc -l < f); echo $((n + 1))",
            "pattern='^[a-z]+$'; grep -E \"$pattern\" f",
            "[[ $n -gt 3 ]] && echo many",
            "cat > x.sh <<'E'\nls $(pwd)\nE\necho done",
        ],
    );
}

#[test]
fn words_of_a_shell_that_are_read_in_another_way_are_refused() {
    all_refused(
        &["rm"],
        &[
            "x=(1)#; rm y",
            "x=(1)ls rm y",
            "bash +O interactive_comments -ic 'true # ; rm y'",
            "bash --rcfile <(echo rm y) -i -c ls",
            "bash --init-file /dev/stdin -i -c ls <<< 'rm y'",
            "cd sub; /proc/self/cwd/ls",
            "exec 3< x; /dev/fd/3 y",
            "CDPATH=deep; cd sub; ./ls",
            "env A=$(echo 1 rm y)",
            "x='1 rm y'; env A=$x",
            "read x; env A=$x ls",
            "strace -o '|rm y' true",
            "hyperfine -S rm ls",
            "run-parts dir",
        ],
    );
    all_fine(
        &["rm"],
        &[
            "x=(1 2); echo \"${x[@]}\"",
            "bash -lic 'ls'",
            "bash -o pipefail -c 'ls | head'",
            "set -euo pipefail; ls",
            "shopt -s nullglob; ls",
            "CDPATH= cd -- sub && pwd",
            "env A=$HOME/x ls",
            "strace -f -o out ls",
            "hyperfine --shell=bash 'ls'",
            "hyperfine -N 'ls'",
        ],
    );
    let (dir, allowing) = policy(&["git diff", "ls"], &[], true);
    for text in ["set -k; git diff GIT_EXTERNAL_DIFF=x", "read GIT_EXTERNAL_DIFF < f; git diff"] {
        assert!(line(&allowing, dir.path(), text).is_err(), "{text}");
    }
}

#[test]
fn a_function_replaces_a_command_only_where_it_is_certainly_defined() {
    let (dir, policy) = policy(&["ls"], &[], true);
    for refused in [
        "(cat() { :; }); cat x",
        "cat x; cat() { :; }",
        "false && cat() { :; }; cat x",
        "if false; then cat() { :; }; fi; cat x",
        "cat() { :; }; command cat x",
        "cat() { :; }; sh -c 'cat x'",
        "cat() { :; }; unset -f cat; cat x",
        "cat() { :; }; eval 'unset -f cat'; cat x",
        "f() { cat() { :; }; }; cat x",
        "cat() { :; } & cat x",
        "f() { cat x; }; f; cat() { :; }",
        "cat() { :; }; time cat x",
    ] {
        assert!(line(&policy, dir.path(), refused).is_err(), "{refused}");
    }
    for fine in [
        "show() { ls \"$1\"; }; show x",
        "a() { ls; }; b() { a; }; b",
        "f() { [ \"$1\" = 0 ] || f 0; }; f 1",
        "done_with() { ls; }; trap done_with EXIT; ls",
        "f() { ls; }; unset X; f",
        "(f() { ls; }; f)",
    ] {
        assert_eq!(line(&policy, dir.path(), fine), Ok(()), "{fine}");
    }
}

#[test]
fn git_command_lines_are_parsed_as_git_parses_them() {
    all_refused(
        &["git push", "rm"],
        &[
            "git -C $(echo . push)",
            "echo . push | xargs git -C",
            "read x <<< '. push'; git -C $x",
            "x='. push'; git -C $x",
            "git -P$(echo ' push')",
            "git rebase -qx 'git push' main",
            "git rebase --exe 'rm x' main",
            "git bisect ru\"$x\"n rm x",
            "git bise\"$x\"ct run rm x",
            "git grep -lOrm x",
            "git difftool -yx rm",
            "git fetch --upload='rm x' y",
            "git clone -qu 'rm x' y z",
            "git merge-index rm -a",
            "git config --comment get core.pager 'rm x'",
            "git config $(echo core.pager rm)",
            "git -c rebase.instructionFormat='a%nexec rm x' rebase -i main",
            "printf '[core]\\n pager = rm\\n' >> .git/config; git -p log",
            "cp x .git/config; git log",
            "cd .git && echo x > config",
        ],
    );
    all_fine(
        &["git push", "rm"],
        &[
            "git -C $HOME/x status",
            "git -C \"$(dirname x)\" status",
            "git rebase -i --autosquash main",
            "git rebase -Xours main",
            "git grep -n 'x' -- '*.rs'",
            "git diff --ext-diff",
            "git fetch --update-head-ok",
            "git config --get core.pager",
            "git config user.email \"$x\"",
            "git bisect good \"$sha\"",
            "git submodule update --init --recursive",
            "cat .git/config",
            "cp pre-commit .git/hooks/pre-commit",
        ],
    );
}

#[test]
fn programs_that_run_what_an_option_names_are_seen_through() {
    all_refused(
        &["rm", "git push"],
        &[
            "tar cIf rm x.tar file",
            "tar cfI x.tar rm file",
            "zip -T -TT rm x.zip file",
            "gcc -wrapper rm,x -c x.c",
            "wget --use-askpass=rm http://x",
            "go test -exec rm ./...",
            "rustc -Clinker=rm x.rs",
            "scp -o ProxyCommand=rm a h:b",
            "sed '1s/.*/rm x/e' file",
            "sed -f - file <<< '1e rm x'",
            "ed -s file <<< '!rm x'",
            "vim -es file <<< '!git push'",
            "perl -e 'open(F, \"git push|\")'",
            "awk -f /dev/stdin <<< 'BEGIN { system(\"git push\") }'",
            "awk -v x='git push' 'BEGIN { system(x) }'",
            "node -pe 'require(\"child_process\").execSync(\"git push\")'",
            "php -r 'passthru(\"git push\");'",
            "some-new-wrapper bash <<< 'git push'",
            "gzip -c /bin/rm > gg.gz; gunzip gg.gz; chmod +x gg; ./gg x",
            "sort -o gg /bin/rm; ./gg x",
            "ln -s /bin b; b/rm x",
            "git mv words gg; ./gg",
        ],
    );
    all_fine(
        &["rm", "git push"],
        &[
            "tar xzf x.tar.gz",
            "tar cf x.tar file",
            "tar -cJf x.tar.xz dir",
            "zip -qr x.zip dir",
            "gcc -Wall -o app app.c && ./app",
            "go test ./... -run X",
            "rustc -O x.rs",
            "scp -o ConnectTimeout=5 a h:b",
            "sed -n '10,40p' f | sed 's/e/E/'",
            "sed -i \"s|$old|$new|g\" f",
            "gunzip -k x.gz && head x",
            "sort -u -o out in && head out",
            "ln -s ../x y && cargo build && ./target/debug/app",
            "python3 -c 'print(open(\"x\").read())'",
            "awk -F: '{print $1 | \"sort\"}' f",
            "docker exec c bash",
        ],
    );
}

#[test]
fn settings_of_git_are_not_written_by_any_option() {
    let (dir, policy) = policy(&[], &["git push"], true);
    let bare = dir.path().join("bare");
    std::fs::create_dir_all(bare.join("objects")).unwrap();
    std::fs::write(bare.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    for written in [
        "git log -1 --format='[core]%n fsmonitor=x' --output=.git/config; git status",
        "git diff --output .git/config",
        "git archive -o .git/config HEAD",
        "cat a | sort -o .git/config",
        "sort -o.git/config a",
        "cat a | sed -n 'w .git/config'",
        "find . -maxdepth 0 -fprintf .git/config '[core]'",
        "cat a | dd of=.git/config",
        "curl -s -o .git/config file:///a",
        "awk 'BEGIN { print \"[core]\" > \".git/config\" }'",
        "ed -s .git/config < a",
        "cp a bare/config",
        "echo '[core]' >> bare/config; git -C bare status",
        "git init -q --bare b; echo '[core]' >> b/config; git -C b status",
        "git clone -q --separate-git-dir=g . c; cp a g/config; git -C c status",
        "mkdir git; echo '[core]' > git/config; XDG_CONFIG_HOME=$PWD git status",
    ] {
        let why = line(&policy, dir.path(), written).expect_err(written);
        assert!(is_unpredictable(&why), "{written}: {why:?}");
    }
    for fine in [
        "cat .git/config",
        "grep url .git/config",
        "find . -path ./.git/config",
        "git diff --output=a.diff",
        "git commit -m 'say more of .git/config'",
        "sort -o config a",
        "echo 'a: 1' > config; git add config",
        "curl -s -o config.yml file:///a",
    ] {
        assert_eq!(line(&policy, dir.path(), fine), Ok(()), "{fine}");
    }
}

#[test]
fn code_that_another_command_prints_is_seen() {
    let (dir, policy) = policy(&[], &["rm -rf"], true);
    for denied in [
        "python3 <(echo 'import os; os.system(\"rm -rf a\")')",
        "perl <(echo 'system(\"rm -rf a\")')",
        "awk -f <(echo 'BEGIN { system(\"rm -rf a\") }')",
        "make -f <(printf 'x:\\n\\trm -rf a\\n')",
        "cmake -E rm -rf a",
    ] {
        assert!(line(&policy, dir.path(), denied).is_err(), "{denied}");
    }
    for fine in [
        "awk '{ print $1 }' <(git log)",
        "python3 <(echo 'print(1)')",
        "cmake -E rm a",
        "cmake -E echo rm -rf a",
    ] {
        assert_eq!(line(&policy, dir.path(), fine), Ok(()), "{fine}");
    }
}

#[test]
fn empty_or_reassigned_variables_do_not_hide_a_denied_command() {
    all_refused(
        &["rm"],
        &[
            "da\"$x\"sh -c 'rm a'",
            "sh\"$x\" -ec 'r\\m a'",
            "git fe\"$x\"tch --upload='rm a' ./remote",
            "gcc -\"$x\"wrapper rm -c x.c",
            "x='a[$'; y='(rm a)]' z=$x$y; ((z))",
            // Only bash has `declare`.
            "x=rm; declare x=ls; $x a",
            "bash xvfb-run rm a",
            "sed $x $'1e rm a' words",
            // Only a part of the word is quoted this way.
            "sed $'/\\\na\\/b=/!e rm a 'x words",
        ],
    );
    let (dir, policy) = policy(&[], &["rm"], true);
    for fine in [
        "git checkout feature\"$x\"",
        "cd \"$d\"/sub && ls",
        "echo \"$x\"-rm",
        "tar -xf\"$f\" -C \"$d\"",
        "declare x=1; echo $x",
    ] {
        assert_eq!(line(&policy, dir.path(), fine), Ok(()), "{fine}");
    }
}
