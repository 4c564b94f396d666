//! Path rules on real files: random trees, random rules, and what a confined process can actually
//! read and write, compared with the rules.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

#[allow(dead_code, reason = "each test program uses its own part")]
mod common;

use std::path::{Path, PathBuf};

use common::Lab;
use retake_engine::{Cancel, ConfineError, Keeper, KeeperSettings, Launch};
use retake_sandbox::{Confinement, Places, Policy};
use retake_types::{PathAccess, PathGrant, PathRule, SandboxMode, SandboxRequest, path_access};

/// Random numbers that are the same in every run of the test.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        // The constants of Knuth's MMIX.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// A tree of three levels with two entries each, and every path in it.
fn tree(root: &Path) -> Vec<PathBuf> {
    let mut paths = vec![root.to_owned()];
    for a in ["a", "b"] {
        for b in ["c", "d"] {
            for c in ["e", "f"] {
                let dir = root.join(a).join(b).join(c);
                std::fs::create_dir_all(&dir).unwrap();
                std::fs::write(dir.join("file"), "content").unwrap();
                paths.extend([dir.join("file"), dir]);
            }
            paths.push(root.join(a).join(b));
        }
        paths.push(root.join(a));
    }
    paths
}

fn start(policy: &Policy) -> Option<Lab> {
    let full = Confinement::full(policy, None).map_err(ConfineError::Sandbox);
    match full.and_then(|full| Keeper::start_confined(KeeperSettings::default(), full)) {
        Ok(keeper) => Some(Lab { keeper, cancel: Cancel::new().unwrap() }),
        Err(ConfineError::Sandbox(failure)) => {
            #[expect(clippy::print_stderr, reason = "a test that tests nothing says so")]
            {
                eprintln!("SKIP: {failure}");
            }
            None
        }
        Err(error) => panic!("{error:?}"),
    }
}

/// What a process inside can do with a path: tries to read it, then to change it.
fn observed(lab: &mut Lab, cwd: &Path, paths: &[PathBuf]) -> Vec<PathAccess> {
    let script = r#"for path; do
        if [ -d "$path" ]; then
            if ls "$path" >/dev/null 2>&1; then
                if touch "$path/made" 2>/dev/null; then rm "$path/made"; echo w; else echo r; fi
            else echo h; fi
        elif [ -e "$path" ]; then
            if [ "$(cat "$path" 2>/dev/null)" = content ]; then
                if (printf content >"$path") 2>/dev/null; then echo w; else echo r; fi
            else echo h; fi
        else echo h; fi
    done"#;
    let mut launch = Launch::new(["sh", "-c", script, "sh"]);
    launch.arguments.extend(paths.iter().map(|path| path.clone().into_os_string()));
    launch.cwd = cwd.to_owned();
    let took = lab.run(launch);
    let access = |line: &str| match line {
        "w" => PathAccess::Writable,
        "r" => PathAccess::ReadOnly,
        _ => PathAccess::Hidden,
    };
    assert!(took.finished.outcome.success(), "{:?}", took.finished);
    took.stdout().lines().map(access).collect()
}

#[test]
fn the_sandbox_enforces_random_rules_on_real_files() {
    let base = tempfile::tempdir_in(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")).unwrap();
    let base = base.path().canonicalize().unwrap();
    let grants =
        [PathGrant::AllowRead, PathGrant::DenyRead, PathGrant::AllowWrite, PathGrant::DenyWrite];
    let mut numbers = Numbers(20);
    for round in 0..60 {
        let root = base.join(round.to_string());
        let paths = tree(&root);
        let cwd = root.join("a");
        let mut rules = vec![PathRule::new(PathGrant::AllowRead, root.clone())];
        for _ in 0..numbers.below(8) {
            let grant = grants[numbers.below(grants.len())];
            rules.push(PathRule::new(grant, paths[numbers.below(paths.len())].clone()));
        }
        let request = SandboxRequest {
            mode: SandboxMode::Strict,
            paths: rules.clone(),
            ..SandboxRequest::default()
        };
        let places = Places { cwd: &cwd, project: None, home: None, program: None };
        let policy = Policy::new(&request, &places).unwrap();
        // The working directory is writable by default, unless a rule for the same path denies
        // that.
        rules.insert(0, PathRule::new(PathGrant::AllowWrite, workspace(&cwd)));
        // A process needs a visible working directory.
        if path_access(&rules, &cwd) == PathAccess::Hidden {
            continue;
        }
        let Some(mut lab) = start(&policy) else { return };
        let observed = observed(&mut lab, &cwd, &paths);
        for (path, observed) in paths.iter().zip(observed) {
            let expected = path_access(&rules, path);
            // A hidden directory that leads to something visible cannot be listed either.
            assert_eq!(observed, expected, "{} with {rules:#?}", path.display());
        }
    }
}

/// The sources of this test are in a repository, which is writable by default.
fn workspace(cwd: &Path) -> PathBuf {
    let found = cwd.ancestors().find(|dir| dir.join(".git").exists());
    found.unwrap_or(cwd).to_owned()
}

#[test]
fn the_child_is_known_by_the_number_that_this_program_knows() {
    let dir = tempfile::tempdir().unwrap();
    let request = SandboxRequest { mode: SandboxMode::Strict, ..SandboxRequest::default() };
    let places = Places { cwd: dir.path(), project: None, home: None, program: None };
    let Some(mut lab) = start(&Policy::new(&request, &places).unwrap()) else { return };
    let mut launch = Launch::new(["sh", "-c", "echo $$; sleep 0.2"]);
    launch.cwd = dir.path().to_owned();
    let took = lab.run(launch);
    let inside = took.pids()[0];
    let outside = took.finished.pid.unwrap();
    assert_ne!(inside, outside);
    assert!(inside < 10, "a process namespace of its own");
}

/// A sandbox for commands in this directory.
fn confined_to(directory: &Path) -> Option<Lab> {
    let request = SandboxRequest { mode: SandboxMode::Strict, ..SandboxRequest::default() };
    let places = Places { cwd: directory, project: None, home: None, program: None };
    start(&Policy::new(&request, &places).unwrap())
}

#[test]
fn a_command_begins_in_the_directory_that_its_name_leads_to_now() {
    let dir = tempfile::tempdir_in(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")).unwrap();
    let top = dir.path().canonicalize().unwrap();
    let [one, other] = ["one", "other"].map(|name| top.join(name));
    std::fs::create_dir(&one).unwrap();
    std::fs::create_dir(&other).unwrap();
    let Some(mut lab) = confined_to(&top) else { return };
    let mut names = |cwd: &Path| {
        let mut launch = Launch::new(["ls"]);
        launch.cwd = cwd.to_owned();
        let took = lab.run(launch);
        assert!(took.finished.outcome.success(), "{:?}", took.finished);
        took.stdout()
    };
    std::fs::write(one.join("first"), "").unwrap();
    assert_eq!(names(&one), "first\n");
    assert_eq!(names(&one), "first\n");
    assert_eq!(names(&other), "");
    std::fs::rename(&one, top.join("moved")).unwrap();
    std::fs::create_dir(&one).unwrap();
    std::fs::write(one.join("second"), "").unwrap();
    assert_eq!(names(&one), "second\n");
    std::fs::remove_dir_all(&one).unwrap();
    std::os::unix::fs::symlink("moved", &one).unwrap();
    assert_eq!(names(&one), "first\n");
}

/// A directory that a confined command sees but may not write. Temporary directories are private
/// inside, so a clone below one must use another place.
fn visible_directory() -> tempfile::TempDir {
    let target = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target"));
    let target = target.canonicalize().unwrap();
    let private = ["/tmp", "/var/tmp"].iter().any(|temporary| target.starts_with(temporary));
    let parent = if private { std::env::home_dir().unwrap() } else { target };
    tempfile::tempdir_in(parent).unwrap()
}

#[test]
fn a_denial_is_reported_even_if_the_same_path_was_just_allowed() {
    let dir = visible_directory();
    let top = dir.path().canonicalize().unwrap();
    let [project, outside] = ["project", "outside"].map(|name| top.join(name));
    // Otherwise the repository of this test would be writable.
    std::fs::create_dir_all(project.join(".git")).unwrap();
    std::fs::create_dir(&outside).unwrap();
    let Some(mut lab) = confined_to(&project) else { return };
    if lab.keeper.denials().is_none() {
        return;
    }
    // By a link in its place, and by changing the directory.
    let script = format!(
        "for i in 1 2 3; do echo x >file; done; rm file; ln -s {0}/linked file; echo x >file
         mkdir sub; for i in 1 2 3; do echo x >sub/file; done; mv sub aside; ln -s {0} sub; echo x >sub/below
         for i in 1 2 3; do echo x >here; done; cd {0}; echo x >here; exit 0",
        outside.display()
    );
    let mut launch = Launch::new(["sh", "-c", &script]);
    launch.cwd = project.clone();
    let took = lab.run(launch);
    assert!(took.finished.outcome.success(), "{:?}", took.finished);
    let calls = lab.keeper.denials().unwrap().take();
    let told: Vec<PathBuf> =
        calls.denied.iter().map(|denial| denial.path.as_path().into()).collect();
    let expected = ["below", "here", "linked"].map(|name| outside.join(name));
    assert_eq!(told, expected, "{calls:?}");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
}
