//! Output of real tools is recorded unchanged: nothing in it is mistaken for a secret.
//!
//! Lines are chosen for their output: hashes, ids, base64, certificates, help texts about passwords,
//! proxies and tokens, build logs and test reports.

use std::path::Path;

use crate::common::{RETAKE, Sandbox, called};

/// A tool, and a line for `sh` in an empty directory. `$REPO` is this repository, `$SAMPLES` has a small
/// project for each test framework.
const LINES: &[(&str, &str)] = &[
    ("git", "git -C $REPO log --stat --format=raw -n 400; git -C $REPO ls-files -s"),
    ("git", "git help -a; git help --config; git clone -h; git fetch https://localhost:1/x.git"),
    (
        "cargo",
        "cargo metadata --offline --format-version 1 --manifest-path $REPO/Cargo.toml; \
         cargo tree --offline --manifest-path $REPO/Cargo.toml",
    ),
    ("cargo", "cp -r $SAMPLES/cargo . && cd cargo && cargo test -v --offline; cargo clean -v"),
    ("cargo", "cargo login --help; cargo publish --help; cargo help config; cargo --list"),
    (
        "rustc",
        "rustc -vV; rustc --print cfg; rustc --print target-list; rustc -C help; rustc --explain E0308",
    ),
    (
        "npm",
        "npm config ls -l; npm ls -g --all --json; npm help; npm token --help; npm login --help; \
         cp -r $SAMPLES/mocha . && cd mocha && npm pack --dry-run --json; \
         npm install --offline --loglevel silly",
    ),
    ("node", "node --test $SAMPLES/node; node -p process.versions; node --v8-options; node --help"),
    (
        "pip",
        "pip help install; pip help download; pip list -v; pip debug -v; pip install -v --no-index nothing",
    ),
    (
        "python3",
        "python3 -m unittest discover -v -s $SAMPLES/unittest -p 'test_*.py'; \
         python3 -m pydoc urllib.request hmac secrets base64 http.cookiejar; \
         python3 -c 'import uuid, hashlib; [print(uuid.uuid5(uuid.NAMESPACE_DNS, str(n)), \
           hashlib.sha512(bytes([n])).hexdigest()) for n in range(250)]'",
    ),
    ("go", "go env; go version -m $(command -v go); go doc -all net/http; go list -json net/..."),
    (
        "go",
        "cp -r $SAMPLES/go . && cd go && GOFLAGS=-mod=mod go test -v ./good ./bad; go vet ./...",
    ),
    (
        "mvn",
        "mvn -v; mvn --help; cp -r $SAMPLES/surefire . && cd surefire && mvn -B -o -X validate",
    ),
    (
        "cmake",
        "cmake -S $SAMPLES/ctest -B build --trace; ctest --test-dir build -V; cmake --help-full",
    ),
    (
        "openssl",
        "openssl version -a; openssl list -commands -digest-algorithms; \
         openssl req -x509 -newkey rsa:2048 -nodes -keyout key -subj /CN=x -out cert 2>&1; \
         cat cert; openssl x509 -in cert -text -fingerprint; openssl rsa -in key -pubout; \
         openssl dgst -sha256 cert; openssl rand -base64 200000; openssl rand -hex 100000",
    ),
    (
        "ssh-keygen",
        "ssh-keygen -q -t ed25519 -N '' -f key && cat key.pub && ssh-keygen -lvf key.pub",
    ),
    ("curl", "curl --help all; curl --manual; curl -V"),
    ("gpg", "gpg --homedir . --version; gpg --homedir . --dump-options; gpg --homedir . --help"),
    (
        "dpkg",
        "dpkg -l; apt-cache dump | head -c 3000000; cat /var/lib/dpkg/info/*.md5sums | head -c 3000000",
    ),
    ("sha256sum", "find /usr/bin /usr/sbin -maxdepth 1 -type f -size -300k | xargs sha256sum"),
    (
        "base64",
        "head -c 3000000 $(command -v git) | base64; head -c 3000000 $(command -v git) | base64 -w0",
    ),
    ("xxd", "head -c 500000 $(command -v git) | xxd"),
    ("find", "find /usr/share /usr/lib /etc -xdev | head -c 4000000"),
    ("strace", "strace -f -v -s 200 ls -l /usr/share"),
    (
        "gcc",
        "gcc -v; echo 'int main(void){return x;}' | gcc -v -x c -; gcc --help=common -Q; echo | gcc -dM -E -",
    ),
    (
        "java",
        "java -XshowSettings:all -version; java -XX:+PrintFlagsFinal -version; javac -help-lint",
    ),
    ("ruby", "ruby --help; gem help commands; gem list -d; gem help push"),
    ("perl", "perl -V; cd $SAMPLES/tap && prove -v sample.t"),
    ("psql", "psql --help; psql --help=variables; pg_dump --help"),
    ("docker", "docker --help; docker login --help; docker run --help"),
    (
        "kubectl",
        "kubectl options; kubectl create secret --help; kubectl create token --help; kubectl config --help",
    ),
    ("terraform", "terraform -help; terraform login -help; terraform version -json"),
    (
        "sqlite3",
        "sqlite3 --help; sqlite3 x.db 'create table t(a, b); insert into t values(hex(randomblob(4000)), 1)' .dump",
    ),
];

#[test]
fn output_of_real_tools_is_not_taken_for_a_secret() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let samples = repository.join("crates/effects/tests/samples");
    let sandbox = Sandbox::new();
    let store = sandbox.dir.path().join("store");
    let (mut ran, mut wrong) = (0, Vec::new());
    for (tool, line) in LINES {
        if sandbox.sh(&format!("command -v {tool}")).code != 0 {
            continue;
        }
        let empty = tempfile::tempdir_in(sandbox.dir.path()).unwrap();
        let mut command = sandbox.command(RETAKE);
        // The tools' own installations are in the user's home.
        command.env("HOME", std::env::var_os("HOME").unwrap_or_default());
        command.env("REPO", &repository).env("SAMPLES", &samples).current_dir(empty.path());
        command.arg("--store").arg(&store);
        let done = called(command.args(["exec", "--json", "--", "sh", "-c", line]));
        let run = done.json();
        let bytes = run["stdoutBytes"].as_u64().unwrap() + run["stderrBytes"].as_u64().unwrap();
        assert!(bytes > 200, "{tool}: {}", done.snapshot());
        ran += 1;
        if run["redactions"].as_u64() != Some(0) {
            let id = run["id"].as_str().unwrap();
            let mut logs = sandbox.command(RETAKE);
            let logs = called(logs.arg("--store").arg(&store).args(["runs", "logs", id]));
            let marked = logs.stdout.lines().filter(|line| line.contains("[redacted:"));
            let marked: Vec<_> = marked.take(5).collect();
            wrong.push(format!("{line}: {}\n{}", run["redactionsByName"], marked.join("\n")));
        }
    }
    assert!(ran > 5, "only {ran} tools are here");
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
