//! Caches in a sandbox: warm, writable, and the real ones unchanged. Real package managers.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::common::{Called, RETAKE, Sandbox, called, eventually};

/// A home with caches, if this machine supports layers for them; prints a message if not.
fn with_caches() -> Option<Sandbox> {
    let sandbox = Sandbox::new();
    let home = sandbox.dir.path().join("home");
    for directory in [".cargo/registry", ".npm", ".cache/pip"] {
        std::fs::create_dir_all(home.join(directory)).unwrap();
    }
    std::fs::write(home.join(".cargo/registry/crate"), "real\n").unwrap();
    std::fs::write(home.join(".cargo/credentials.toml"), "SECRET\n").unwrap();
    let called = confined(&sandbox, "echo x > ~/.npm/probe");
    if called.code != 0 {
        #[expect(clippy::print_stderr, reason = "a test that tests nothing says so")]
        {
            eprintln!("SKIP: {}", called.stderr);
        }
        return None;
    }
    Some(sandbox)
}

fn confined(sandbox: &Sandbox, script: &str) -> Called {
    called(exec(sandbox).args(["sh", "-c", script]))
}

/// A confined command that finds its caches in the home directory.
fn exec(sandbox: &Sandbox) -> std::process::Command {
    let mut command = sandbox.command(RETAKE);
    for name in ["CARGO_HOME", "NPM_CONFIG_CACHE", "XDG_CACHE_HOME"] {
        command.env_remove(name);
    }
    command.args(["exec", "--sandbox", "--"]);
    command
}

fn layers(sandbox: &Sandbox) -> Vec<PathBuf> {
    let base = sandbox.dir.path().join("home/data/retake/sandbox");
    std::fs::read_dir(base).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn writes_to_caches_stay_in_the_project_and_leave_the_real_cache_unchanged() {
    let Some(sandbox) = with_caches() else { return };
    let home = sandbox.dir.path().join("home");
    let called = confined(
        &sandbox,
        "cat ~/.cargo/registry/crate; echo poison > ~/.cargo/registry/crate; rm -rf ~/.cache/pip; \
         echo new > ~/.npm/new; cat ~/.cargo/credentials.toml || echo hidden; \
         mv ~/.cargo ~/away 2>/dev/null && echo moved; echo ${XDG_CACHE_HOME-unset}",
    );
    assert_eq!(called.stdout, "real\nhidden\nunset\n", "{}", called.snapshot());
    let real = |name: &str| std::fs::read_to_string(home.join(name)).unwrap();
    assert_eq!(real(".cargo/registry/crate"), "real\n");
    assert!(home.join(".cache/pip").is_dir() && !home.join(".npm/new").exists());
    // The next run of the project continues with it.
    let called = confined(&sandbox, "cat ~/.cargo/registry/crate ~/.npm/new; ls ~/.cache");
    assert_eq!(called.stdout, "poison\nnew\n", "{}", called.snapshot());
    // The layers themselves are not accessible.
    let base = home.join("data/retake/sandbox");
    let called = confined(&sandbox, &format!("ls {} || echo hidden", base.display()));
    assert_eq!(called.stdout, "hidden\n", "{}", called.snapshot());
}

#[test]
fn a_simultaneous_second_sandbox_gets_a_temporary_layer() {
    let Some(sandbox) = with_caches() else { return };
    let script = "echo first > ~/.npm/who; touch begun; while [ ! -e go ]; do sleep 0.01; done";
    let mut first = exec(&sandbox);
    first.args(["sh", "-c", script]).stdout(Stdio::null());
    let mut first = first.spawn().unwrap();
    eventually("the first sandbox", || sandbox.project().join("begun").exists());
    let called = confined(&sandbox, "cat ~/.npm/who || echo own; echo second > ~/.npm/who");
    std::fs::write(sandbox.project().join("go"), "").unwrap();
    assert!(first.wait().unwrap().success());
    assert_eq!(called.stdout, "own\n", "{}", called.snapshot());
    assert_eq!(layers(&sandbox).len(), 1, "{:?}", layers(&sandbox));
    assert_eq!(confined(&sandbox, "cat ~/.npm/who").stdout, "first\n");
}

#[test]
fn a_killed_sandbox_leaves_its_layer_to_the_next_and_no_temporary_one() {
    let Some(sandbox) = with_caches() else { return };
    let hold = "touch begun-$1; while :; do sleep 1; done";
    let mut runners = Vec::new();
    for name in ["1", "2"] {
        let mut command = exec(&sandbox);
        command.args(["sh", "-c", hold, "sh", name]);
        runners.push(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let begun = sandbox.project().join(format!("begun-{name}"));
        eventually("the sandbox", || begun.exists());
    }
    assert_eq!(layers(&sandbox).len(), 2, "{:?}", layers(&sandbox));
    for mut runner in runners {
        runner.kill().unwrap();
        runner.wait().unwrap();
    }
    eventually("the layers to be free", || {
        let called = confined(&sandbox, "true");
        called.code == 0 && layers(&sandbox).len() == 1
    });
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let here = sandbox.dir.path().canonicalize().unwrap();
    assert!(!mounts.contains(here.to_str().unwrap()), "{mounts}");
}

#[test]
fn without_layers_variables_lead_into_the_private_temp() {
    let Some(sandbox) = with_caches() else { return };
    let mut command = exec(&sandbox);
    // Nothing can be created there.
    command.env("XDG_DATA_HOME", "/proc/none");
    command.args(["sh", "-c", "echo $NPM_CONFIG_CACHE; touch ~/.npm/x || echo kept"]);
    let called = called(&mut command);
    assert_eq!(called.stdout, "/tmp/.cache/npm\nkept\n", "{}", called.snapshot());
}

/// A program of this machine, or `None` and a message.
fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    #[expect(clippy::print_stderr, reason = "a test that tests nothing says so")]
    if found.is_none() {
        eprintln!("SKIP: {name} is not installed");
    }
    found
}

#[test]
fn cargo_builds_offline_from_the_real_cache() {
    let (Some(sandbox), Some(_)) = (with_caches(), installed("cargo")) else { return };
    let real = std::env::home_dir().unwrap();
    let at = |variable: &str, name: &str| {
        std::env::var_os(variable).map_or_else(|| real.join(name), PathBuf::from)
    };
    let (cargo_home, rustup_home) = (at("CARGO_HOME", ".cargo"), at("RUSTUP_HOME", ".rustup"));
    sandbox.file(
        "Cargo.toml",
        "[package]\nname = \"built\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\nlibc = \"0.2\"\n[workspace]\n",
    );
    std::fs::create_dir(sandbox.project().join("src")).unwrap();
    sandbox.file("src/main.rs", "fn main() { println!(\"{}\", libc::EPERM); }\n");
    let script = "touch $CARGO_HOME/poison && cargo run -q --offline";
    let mut command = sandbox.command(RETAKE);
    command
        .args(["exec", "--sandbox", "--", "sh", "-c", script])
        .env("CARGO_HOME", &cargo_home)
        .env("RUSTUP_HOME", rustup_home)
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CARGO_TARGET_DIR");
    let called = called(&mut command);
    assert_eq!(called.stdout, "1\n", "{}", called.snapshot());
    assert!(!cargo_home.join("poison").exists());
}

#[test]
fn npm_installs_and_caches_without_the_real_cache() {
    let (Some(sandbox), Some(_)) = (with_caches(), installed("npm")) else { return };
    sandbox.file("package.json", r#"{"name": "a", "version": "1.0.0"}"#);
    let dependency = sandbox.project().join("dependency");
    std::fs::create_dir(&dependency).unwrap();
    sandbox.file("dependency/package.json", r#"{"name": "b", "version": "1.0.0"}"#);
    let script = "npm pack ./dependency --silent && npm install --offline --no-audit ./b-1.0.0.tgz \
                  && ls node_modules";
    let called = confined(&sandbox, script);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(called.stdout.ends_with("b\n"), "{}", called.snapshot());
    let real = sandbox.dir.path().join("home/.npm");
    assert_eq!(entries(&real), 0, "the real cache");
}

fn entries(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

#[test]
fn pip_installs_into_an_environment_of_the_project() {
    let (Some(sandbox), Some(_)) = (with_caches(), installed("python3")) else { return };
    let dependency = sandbox.project().join("dependency");
    std::fs::create_dir(&dependency).unwrap();
    sandbox.file(
        "dependency/pyproject.toml",
        "[project]\nname = \"dependency\"\nversion = \"1.0\"\n[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n",
    );
    sandbox.file(
        "dependency/backend.py",
        "import zipfile\n\
         def build_wheel(directory, config_settings=None, metadata_directory=None):\n    \
             name = 'dependency-1.0-py3-none-any.whl'\n    \
             info = 'dependency-1.0.dist-info/'\n    \
             with zipfile.ZipFile(directory + '/' + name, 'w') as z:\n        \
                 z.writestr('dependency.py', 'value = 42\\n')\n        \
                 z.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: dependency\\nVersion: 1.0\\n')\n        \
                 z.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n        \
                 z.writestr(info + 'RECORD', '')\n    \
             return name\n",
    );
    let possible = sandbox.sh("python3 -m venv probe");
    if possible.code != 0 {
        eprintln!("SKIP: {}", possible.stderr);
        return;
    }
    let script = "python3 -m venv own && own/bin/pip install -q --no-index ./dependency \
                  && own/bin/python -c 'import dependency; print(dependency.value)'";
    let called = confined(&sandbox, script);
    assert_eq!(called.stdout, "42\n", "{}", called.snapshot());
}
