//! The git that retake runs does not execute what an agent plants in its repository.

use crate::common::{Sandbox, called};

/// What the agent does, so that git would execute it: `touch` of a file named `ran`.
const PLANTS: [(&str, &str); 8] = [
    (
        "hooks",
        "for hook in post-index-change reference-transaction post-checkout pre-commit; do \
        printf '#!/bin/sh\\ntouch \"$RAN\"\\n' > .git/hooks/$hook; chmod +x .git/hooks/$hook; done",
    ),
    ("fsmonitor", "git config core.fsmonitor 'touch \"$RAN\"; false'"),
    (
        "filter",
        "git config filter.evil.clean 'touch \"$RAN\"; cat'; echo '* filter=evil' > .gitattributes",
    ),
    (
        "filter by info/attributes",
        "git config filter.evil.clean 'touch \"$RAN\"; cat'; \
        git config filter.evil.required true; mkdir -p .git/info; echo '* filter=evil' > .git/info/attributes",
    ),
    (
        "process filter, odd name",
        "printf '[filter \"a=b c\"]\\n process = touch \\\\\"$RAN\\\\\"\\n' >> .git/config; \
        printf '[filter \"x\"]\\n smudge = touch \\\\\"$RAN\\\\\"; cat\\n clean = touch \\\\\"$RAN\\\\\"; cat\\n' >> .git/config; echo '* filter=x' > .gitattributes",
    ),
    (
        "gitlink",
        "cd sub; git config core.fsmonitor 'touch \"$RAN\"; false'; \
        git config filter.evil.clean 'touch \"$RAN\"; cat'; mkdir -p .git/info; \
        echo '* filter=evil' > .git/info/attributes; touch -d 2001-01-01 f; cd ..",
    ),
    (
        "new repository",
        "git init -q new; cd new; echo x > f; git add f; \
        git -c user.name=n -c user.email=e commit -qm x; git config filter.evil.clean 'touch \"$RAN\"; cat'; \
        echo '* filter=evil' > .git/info/attributes; git config core.fsmonitor 'touch \"$RAN\"; false'; \
        touch -d 2001-01-01 f; cd ..",
    ),
    (
        "missing object",
        "git config remote.o.url \"ext::sh -c touch% $RAN\"; git config remote.o.promisor true; \
        git config extensions.partialClone o; git config protocol.ext.allow always; echo x >> file",
    ),
];

/// Whether the host's own git would execute it; an ineffective plant would prove nothing.
fn host_executes(sandbox: &Sandbox, ran: &std::path::Path) -> bool {
    let line = "git add --all 2>/dev/null; git status >/dev/null 2>&1; git commit -qm host 2>/dev/null; \
                git cat-file -e 0123456789012345678901234567890123456789 2>/dev/null; true";
    called(sandbox.command("sh").args(["-c", line]).env("RAN", ran));
    ran.exists()
}

#[test]
fn checkpoints_execute_nothing_that_the_agent_planted() {
    let mut harmless = Vec::new();
    for (name, plant) in PLANTS {
        let sandbox = Sandbox::new();
        let ran = sandbox.project().parent().unwrap().join("ran");
        sandbox.git(&["init", "-q", "-b", "main"]);
        sandbox.file(".gitignore", ".agent\n");
        sandbox.file("file", "content\n");
        let made = sandbox.sh(
            "git init -q sub && cd sub && echo a > f && git add f && \
             git -c user.name=n -c user.email=e commit -qm x && cd .. && git add . 2>/dev/null && \
             git -c user.name=n -c user.email=e commit -qm one && \
             git config user.name n && git config user.email e && mkdir -p .git/hooks sub/.git/info .git/info",
        );
        assert_eq!(made.code, 0, "{}", made.snapshot());
        let plant = plant.replace("$RAN", &ran.display().to_string());
        sandbox.file("plant.sh", &plant);
        sandbox.agent(
            "",
            &[
                "start; sh ./plant.sh; rm -f ../ran; progress 1 9; result",
                "start; echo y > file; progress 2 9; result",
            ],
        );
        sandbox.workspace("task", &[]);
        let called = sandbox.run_agent(&["-m", "2", "--checkpoint"]);
        assert_eq!(called.code, 0, "{name}: {}", called.snapshot());
        assert!(!ran.exists(), "{name}: executed by a checkpoint\n{}", called.snapshot());
        let refs = sandbox.sh("git -c core.fsmonitor=false for-each-ref refs/retake | wc -l");
        assert_eq!(refs.stdout.trim(), "3", "{name}: {}", called.snapshot());
        let back = sandbox.retake(&["agent", "rollback", "task", "--to", "1"]);
        assert_eq!(back.code, 0, "{name}: {}", back.snapshot());
        assert!(!ran.exists(), "{name}: executed by going back\n{}", back.snapshot());
        if !host_executes(&sandbox, &ran) {
            harmless.push(name);
        }
    }
    assert!(harmless.is_empty(), "these plants do nothing, so they prove nothing: {harmless:?}");
}

#[test]
fn a_repository_that_points_to_another_one_gets_no_checkpoint() {
    let sandbox = Sandbox::new();
    sandbox.git(&["init", "-q", "-b", "main"]);
    sandbox.file(".gitignore", ".agent\n");
    sandbox.git(&["init", "-q", "../evil"]);
    let plant = "echo ../../evil/.git > .git/commondir";
    sandbox.agent("", &[&format!("start; {plant}; progress 1 9; result")]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["-m", "1", "--checkpoint"]);
    assert_eq!(called.code, 0, "a checkpoint never stops the loop: {}", called.snapshot());
    let said = format!("{}{}", called.stdout, called.stderr);
    assert!(said.contains("commondir makes git use another repository"), "{said}");
}
