//! The environment in which lines are run: a project in a sandbox, a repository with a remote, and programs
//! that leave a trace.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::Duration;

use retake_engine::{
    Cancel, Command, Keeper, KeeperSettings, Launch, LiveOutput, Variable, interpret, which,
};
use retake_policy::{Policy, PolicyRefusal, ProposedCommand};
use retake_runner::config::Config;
use retake_runner::confined;
use retake_runner::context::RunContext;
use retake_runner::notice;
use retake_runner::project::Project;
use retake_types::config::PolicyConfig;
use retake_types::{PathGrant, PathRule, SandboxMode, SandboxRequest, ShellMode};

use super::case::{Case, Rules};
use crate::test;

/// Longer than any of these lines needs; some of them wait forever.
const TIME: Duration = Duration::from_secs(3);
const SHELLS: [&str; 2] = ["/bin/dash", "/bin/bash"];

/// Programs that run their arguments, standing in for real ones that are not installed everywhere.
const WRAPPERS: [(&str, &str); 11] = [
    ("chronic", "exec \"$@\""),
    ("wrapit", "exec \"$@\""),
    ("wrapline", "exec /bin/sh -c \"$1\""),
    ("direnv", "[ \"$1\" = exec ] || exit; shift 2; exec \"$@\""),
    ("uv", "[ \"$1\" = run ] && shift && exec \"$@\""),
    ("npx", "exec \"$@\""),
    ("mise", "[ \"$1\" = x ] || exit; shift; [ \"$1\" = -- ] && shift; exec \"$@\""),
    (
        "hyperfine",
        "for o; do [ \"${o#-}\" = \"$o\" ] || exit; done; for line; do /bin/sh -c \"$line\"; done",
    ),
    ("doas", "exec \"$@\""),
    ("cmake", "case \"$1 $2\" in '-E env' | '-E time') shift 2; exec \"$@\";; esac"),
    // Its applets are the system's programs.
    ("busybox", "exec \"$@\""),
];

/// Programs that start what a variable names, standing in for real ones that are not installed everywhere.
const TOLD_BY_VARIABLES: [(&str, &str); 2] = [
    ("cargo", "[ -z \"$RUSTC_WRAPPER\" ] || exec $RUSTC_WRAPPER rustc"),
    ("less", "case $LESSOPEN in '|'*) line=${LESSOPEN#|}; eval \"${line%%%s*} $1\";; esac"),
];

pub(super) struct Arena {
    root: PathBuf,
    template: PathBuf,
    project: PathBuf,
    trace: PathBuf,
    path: OsString,
    environment: Vec<Variable>,
    policies: Vec<Policy>,
    keeper: Keeper,
    cancel: Cancel,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Arena {
    /// `None` if nothing can be confined.
    pub(super) fn new() -> Result<Option<Self>, String> {
        let root = test::target().join(format!("fuzz-{}", std::process::id()));
        let (bin, template, project) =
            (root.join("bin"), root.join("template"), root.join("project"));
        for directory in [&bin, &template, &project] {
            fs::create_dir_all(directory).map_err(text)?;
        }
        let trace = project.join(".trace");
        let usual = std::env::var_os("PATH").unwrap_or_default();
        let path =
            std::env::join_paths([bin.clone()].into_iter().chain(std::env::split_paths(&usual)))
                .map_err(text)?;
        // SAFETY: no other thread runs yet. Rules search programs along the PATH of the process.
        unsafe { std::env::set_var("PATH", &path) };
        script(
            &bin.join("trip"),
            &format!("{{ printf trip; printf '\\037%s' \"$@\"; echo; }} >> '{}'", trace.display()),
        )?;
        for (name, lines) in WRAPPERS.into_iter().chain(TOLD_BY_VARIABLES) {
            script(&bin.join(name), lines)?;
        }
        std::os::unix::fs::symlink(bin.join("busybox"), bin.join("bb")).map_err(text)?;
        let git = which(OsStr::new("git"), Some(&usual), &root).ok_or("there is no git")?;
        for (program, link, copy) in [(bin.join("trip"), "tlink", "tcopy"), (git, "glink", "gcopy")]
        {
            std::os::unix::fs::symlink(&program, bin.join(link)).map_err(text)?;
            fs::copy(&program, bin.join(copy)).map_err(text)?;
        }
        repository(&root, &template, &trace)?;
        let Some(keeper) = keeper(&bin, &project, &template)? else { return Ok(None) };
        let policies =
            Rules::ALL.iter().map(|rules| policy(*rules, &project)).collect::<Result<_, _>>()?;
        let home = project.clone().into_os_string();
        let environment = [("PATH", path.clone()), ("HOME", home), ("LANG", "C.UTF-8".into())];
        let environment = environment.map(Variable::from).to_vec();
        let cancel = Cancel::new().map_err(text)?;
        let mut arena =
            Self { root, template, project, trace, path, environment, policies, keeper, cancel };
        arena.check()?;
        Ok(Some(arena))
    }

    /// The installed stand-ins.
    pub(super) fn programs(&self) -> Vec<&'static str> {
        WRAPPERS.iter().map(|(name, _)| *name).collect()
    }

    /// Checks that traces are left when no rule prevents it. The corpus checks that rules do.
    fn check(&mut self) -> Result<(), String> {
        for (rules, text) in [
            (Rules::DenyTrip, "trip"),
            (Rules::DenyTripPush, "trip a push"),
            (Rules::DenyGitPush, "git push -q origin main"),
            (Rules::AllowSome, "GIT_EXTERNAL_DIFF=trip git diff"),
            (Rules::AllowSome, "GIT_SSH=trip git fetch ssh://h/r"),
            (Rules::AllowSome, "GIT_PROXY_COMMAND=trip git ls-remote git://h/r"),
            (Rules::AllowSome, "RUSTC_WRAPPER=trip cargo build"),
            (Rules::AllowSome, "LESSOPEN='|trip %s' less file"),
        ] {
            let case = Case { rules, set: Vec::new(), text: text.to_owned() };
            if !self.is_bypass(&case)? {
                return Err(format!("{text}: it left no trace"));
            }
        }
        Ok(())
    }

    /// Whether the policy allows the case, judged as by the server.
    pub(super) fn allows(&self, case: &Case) -> bool {
        matches!(self.judge(case), Some(Ok(())))
    }

    /// Whether the case passes something to an unknown program that only a shell could
    /// recognise as what the rules forbid. The guide says that a policy does not detect that; anything
    /// written out word for word must be detected.
    pub(super) fn is_beyond_the_policy(&self, case: &Case) -> bool {
        let text = case.text.replace("wrapit", "env").replace("wrapline", "sh -c");
        let known = Case { text, ..case.clone() };
        let denied =
            |refusal: &PolicyRefusal| matches!(refusal, PolicyRefusal::DeniedByRule { .. });
        known.text != case.text
            && !self
                .judge(&known)
                .is_some_and(|judged| judged.is_err_and(|refusals| refusals.iter().any(denied)))
    }

    fn judge(&self, case: &Case) -> Option<Result<(), Vec<PolicyRefusal>>> {
        let (arguments, shell) = self.read(&case.text)?;
        let at = Rules::ALL.iter().position(|rules| *rules == case.rules).unwrap_or(0);
        let set: Vec<(OsString, OsString)> =
            case.set.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let proposed = ProposedCommand {
            arguments: &arguments,
            line: shell.then_some(case.text.as_str()),
            cwd: &self.project,
            set: &set,
            path: Some(&self.path),
            file: None,
        };
        Some(self.policies[at].judge(&proposed))
    }

    /// The arguments of a line, and whether a shell reads it.
    fn read(&self, line: &str) -> Option<(Vec<OsString>, bool)> {
        if line.trim().is_empty() {
            return None;
        }
        let found = |name: &str| which(OsStr::new(name), Some(&self.path), &self.project).is_some();
        let read = interpret(line, ShellMode::Auto, found).ok()?;
        Some((read.arguments.into_iter().map(OsString::from).collect(), read.shell))
    }

    /// Whether running it, by any shell, leaves the trace that its rules forbid.
    pub(super) fn is_bypass(&mut self, case: &Case) -> Result<bool, String> {
        let Some((arguments, shell)) = self.read(&case.text) else { return Ok(false) };
        let runs: Vec<Vec<OsString>> = match shell {
            true => SHELLS
                .iter()
                .map(|shell| vec![(*shell).into(), "-c".into(), (&case.text).into()])
                .collect(),
            false => vec![arguments],
        };
        for arguments in runs {
            self.reset()?;
            let mut launch = Launch {
                cwd: self.project.clone(),
                environment: self.environment.clone(),
                timeout: Some(TIME),
                grace: Duration::ZERO,
                ..Launch::new(arguments)
            };
            for variable in &case.set {
                launch.set(variable.clone().into());
            }
            // A program that cannot be started starts nothing.
            let Ok(command) = Command::new(launch) else { continue };
            self.keeper.run(&command, &self.cancel, LiveOutput::default(), &mut |_| {});
            let trace = fs::read(&self.trace).unwrap_or_default();
            // The next case must not find files of this one.
            self.reset()?;
            if case.rules.forbid(&String::from_utf8_lossy(&trace)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Restores the project. Its directory itself stays: it is mounted inside.
    fn reset(&self) -> Result<(), String> {
        for entry in fs::read_dir(&self.project).map_err(text)? {
            let entry = entry.map_err(text)?;
            let kind = entry.file_type().map_err(text)?;
            let removed = match kind.is_dir() {
                true => remove_tree(&entry.path()),
                false => fs::remove_file(entry.path()),
            };
            removed.map_err(|error| format!("{}: {error}", entry.path().display()))?;
        }
        copy_tree(&self.template, &self.project).map_err(text)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // Best effort: it is below the target directory.
        _ = remove_tree(&self.root);
    }
}

fn script(file: &Path, lines: &str) -> Result<(), String> {
    fs::write(file, format!("#!/bin/sh\n{lines}\n")).map_err(text)?;
    fs::set_permissions(file, PermissionsExt::from_mode(0o755)).map_err(text)
}

/// A repository with a change, and a remote to which a push leaves a trace.
fn repository(root: &Path, template: &Path, trace: &Path) -> Result<(), String> {
    let remote = root.join("project/.remote");
    let git = |directory: &Path, words: &[&str]| {
        let mut git = Process::new("git");
        git.arg("-C").arg(directory).args(words).env("GIT_CONFIG_GLOBAL", "/dev/null");
        for kind in ["AUTHOR", "COMMITTER"] {
            git.env(format!("GIT_{kind}_NAME"), "x").env(format!("GIT_{kind}_EMAIL"), "x@x");
        }
        test::succeed(&mut git)
    };
    git(template, &["init", "-q", "-b", "main", "--template="])?;
    fs::write(template.join("file"), "1\n").map_err(text)?;
    fs::write(template.join("words"), "trip push\n").map_err(text)?;
    // The forbidden program under the name of an allowed one.
    for place in ["other", "deep/sub"] {
        fs::create_dir_all(template.join(place)).map_err(text)?;
        fs::copy(root.join("bin/trip"), template.join(place).join("ls")).map_err(text)?;
    }
    git(template, &["add", "."])?;
    git(template, &["commit", "-q", "-m", "first"])?;
    fs::write(template.join("file"), "2\n").map_err(text)?;
    git(template, &["init", "-q", "--bare", "--template=", ".remote"])?;
    git(template, &["remote", "add", "origin", &remote.to_string_lossy()])?;
    fs::create_dir_all(template.join(".git/hooks")).map_err(text)?;
    script(&template.join(".git/hooks/pre-push"), &format!("echo pushed >> '{}'", trace.display()))
}

/// The keeper that confines all lines.
fn keeper(bin: &Path, project: &Path, template: &Path) -> Result<Option<Keeper>, String> {
    // The repository must exist when its directory is made writable.
    copy_tree(template, project).map_err(text)?;
    let config = Config::load(None).map_err(text)?;
    let known = Project::with_store(Some(project.to_owned()), project.join(".no-store"));
    let context = RunContext::new(&known, &config, notice::ignore(), |_, _| {});
    // Of /tmp only the listed paths exist inside.
    let paths = vec![PathRule::new(PathGrant::AllowRead, bin.to_owned())];
    let request = SandboxRequest { mode: SandboxMode::Strict, paths, ..SandboxRequest::default() };
    let started = confined::start_keeper(&request, project, &context, KeeperSettings::default());
    Ok(started.ok())
}

fn policy(rules: Rules, project: &Path) -> Result<Policy, String> {
    let words = |rules: &[&str]| rules.iter().map(|&rule| rule.to_owned()).collect();
    let config = Config::load(None).map_err(text)?;
    let config = PolicyConfig {
        allow: words(rules.allow()),
        deny: words(rules.deny()),
        shell: Some(true),
        private_temp: false,
        ..config.policy
    };
    Policy::new(&config, &[], project).map_err(|invalid| format!("{invalid:?}"))
}

fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_tree(&entry.path(), &target)?,
            false => _ = fs::copy(entry.path(), target)?,
        }
    }
    Ok(())
}

/// Removes a directory, even without permissions.
fn remove_tree(path: &Path) -> std::io::Result<()> {
    // A line may have changed modes.
    _ = fs::set_permissions(path, PermissionsExt::from_mode(0o755));
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => remove_tree(&entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    fs::remove_dir(path)
}
