//! How long several agents take to start, compared with one `git worktree add`, and the disk space of their
//! clones.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime};

use super::median;
use crate::page::Page;

const FILES: usize = 10_000;
const AGENTS: usize = 8;
const ROUNDS: usize = 5;

pub(crate) fn run() -> Result<(), String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let repository = BenchRepository::new(own.with_file_name("retake"))?;
    let mut page = Page::new(
        "agent: several at once",
        "`cargo xtask bench fleet` writes this page. Medians of interleaved rounds on a repository of 10,000 files \
         (28 MB). An agent has begun when its program writes its first file; the runs are confined, so that trees are \
         layers over one copy.",
    );
    let mut measured = Measured::default();
    for round in 0..ROUNDS {
        eprint!("\rstart: round {} of {ROUNDS}", round + 1);
        repository.round(&mut measured)?;
    }
    eprintln!();
    let ms = |values: &[f64]| format!("{:.0}", median(values));
    let ratio = median(&measured.all) / median(&measured.worktree);
    page.section(
        "Start",
        "From the start of the command until all agents have begun. A further agent: the time \
         between the beginnings of two consecutive agents. Targets: 8 agents in 1.3 times the time \
         of `git worktree add`, a further one in 250 ms.",
    );
    let rows = [
        ("git worktree add", &measured.worktree, "1.00".to_owned()),
        ("retake agent run, 8 agents", &measured.all, format!("{ratio:.2}")),
        ("a further agent", &measured.further, String::new()),
    ];
    let rows = rows.map(|(what, values, ratio)| vec![what.to_owned(), ms(values), ratio]);
    page.table(&["", "ms", "ratio"], &rows);
    page.section(
        "Disk",
        "Disk space of the tree of an agent that has changed one file of 2 KB, relative to the \
         space of its files.",
    );
    let rows = [("a layer", &measured.layer_kib), ("files of a worktree", &measured.worktree_kib)];
    let rows = rows.map(|(what, values)| vec![what.to_owned(), ms(values)]);
    page.table(&["", "KiB"], &rows);
    page.write("fleet.md")
}

#[derive(Default)]
struct Measured {
    worktree: Vec<f64>,
    all: Vec<f64>,
    further: Vec<f64>,
    layer_kib: Vec<f64>,
    worktree_kib: Vec<f64>,
}

/// A repository with a workspace for each agent; removed at the end.
struct BenchRepository {
    home: PathBuf,
    retake: PathBuf,
}

impl BenchRepository {
    fn new(retake: PathBuf) -> Result<Self, String> {
        // Not below /tmp, because a sandbox has its own.
        let home = crate::test::target().join(format!("bench-fleet-{}", std::process::id()));
        let repository = Self { home, retake };
        repository.make().map_err(|error| error.to_string())?;
        repository.git(&["init", "--quiet", "--initial-branch=main"])?;
        // A gc that a commit starts in the background would disturb the measurement.
        repository.git(&["config", "gc.auto", "0"])?;
        repository.git(&["config", "maintenance.auto", "false"])?;
        repository.git(&["add", "--all"])?;
        repository.git(&["commit", "--quiet", "--message=bench"])?;
        repository.git(&["gc", "--quiet"])?;
        for number in 0..AGENTS {
            let name = format!("a{number}");
            repository.succeed(&["agent", "init", &name, "--delay", "0"])?;
            let workspace = repository.project().join(".agent/workspaces").join(&name);
            fs::write(workspace.join("INSTRUCTIONS.md"), "Begin.\n")
                .map_err(|error| error.to_string())?;
        }
        Ok(repository)
    }

    fn make(&self) -> std::io::Result<()> {
        let project = self.project();
        fs::create_dir_all(project.join(".agent"))?;
        fs::create_dir_all(self.begun())?;
        for number in 0..FILES {
            let directory = project.join(format!("d{}", number / 100));
            fs::create_dir_all(&directory)?;
            let text = format!("line of file {number}\n").repeat(130);
            fs::write(directory.join(format!("f{number}")), text)?;
        }
        fs::write(project.join(".agent/.gitignore"), "*\n")?;
        let agent = self.home.join("agent.sh");
        // All run at once, so that none is slowed down by the end of another.
        let script = format!(
            "#!/bin/sh\ncat >/dev/null\nprintf %2048s x > changed\ntouch {0}/$RETAKE_AGENT\n\
             while [ $(ls {0} | wc -l) -lt {AGENTS} ]; do sleep 0.02; done\n\
             echo '{{\"complete\":true}}' > $RETAKE_WORKSPACE_PATH/.status.json\n",
            self.begun().display()
        );
        fs::write(&agent, script)?;
        fs::set_permissions(&agent, fs::Permissions::from_mode(0o755))?;
        let config = format!("agent:\n  kind: custom\n  command: {}\n", agent.display());
        fs::write(project.join(".agent/config.yml"), config)
    }

    fn project(&self) -> PathBuf {
        self.home.join("project")
    }

    fn begun(&self) -> PathBuf {
        self.home.join("begun")
    }

    fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.project()).stdout(Stdio::null()).stderr(Stdio::null());
        command.env("XDG_DATA_HOME", self.data());
        for role in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{role}_NAME"), "bench");
            command.env(format!("GIT_{role}_EMAIL"), "bench@localhost");
        }
        command
    }

    fn git(&self, words: &[&str]) -> Result<(), String> {
        self.run(self.command(Path::new("git")).args(words))
    }

    fn succeed(&self, words: &[&str]) -> Result<(), String> {
        self.run(self.command(&self.retake).args(words))
    }

    fn run(&self, command: &mut Command) -> Result<(), String> {
        let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
        status.success().then_some(()).ok_or_else(|| format!("{command:?}: {status}"))
    }

    fn round(&self, measured: &mut Measured) -> Result<(), String> {
        let io = |error: std::io::Error| error.to_string();
        let worktree = self.home.join("worktree");
        let start = Instant::now();
        let place = worktree.display().to_string();
        self.git(&["worktree", "add", "--quiet", "--detach", &place])?;
        measured.worktree.push(start.elapsed().as_secs_f64() * 1e3);
        measured.worktree_kib.push(used_kib(&worktree).map_err(io)?);
        self.git(&["worktree", "remove", "--force", &place])?;

        for entry in fs::read_dir(self.begun()).map_err(io)?.flatten() {
            fs::remove_file(entry.path()).map_err(io)?;
        }
        let names: Vec<String> = (0..AGENTS).map(|number| format!("a{number}")).collect();
        let mut command = self.command(&self.retake);
        command.args(["agent", "run", "--again", "--quiet", "--sandbox", "--jobs", "8"]);
        command.arg("--allow-write").arg(self.begun()).args(&names);
        let start = SystemTime::now();
        let mut child = command.spawn().map_err(io)?;
        let layers = loop {
            // The files of the first layer, while all agents are running.
            let begun = fs::read_dir(self.begun()).map_err(io)?.count();
            if begun == AGENTS {
                break self.layers();
            }
            if child.try_wait().map_err(io)?.is_some() {
                break None;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        let layer = layers.ok_or("the agents did not begin in layers")?;
        measured.layer_kib.push(used_kib(&layer.join("a0")).map_err(io)?);
        let status = child.wait().map_err(io)?;
        if !status.success() {
            return Err(format!("retake agent run: {status}"));
        }
        let mut begun = Vec::new();
        for name in &names {
            let at = fs::metadata(self.begun().join(name)).and_then(|meta| meta.modified());
            let after = at.map_err(io)?.duration_since(start).map_err(|error| error.to_string())?;
            begun.push(after.as_secs_f64() * 1e3);
        }
        begun.sort_by(f64::total_cmp);
        measured.all.extend(begun.last());
        measured.further.extend(begun.windows(2).map(|pair| pair[1] - pair[0]));
        Ok(())
    }

    /// The layers of the running agents.
    fn layers(&self) -> Option<PathBuf> {
        let fleets = fs::read_dir(self.data().join("retake/trees")).ok()?.flatten();
        fleets.map(|fleet| fleet.path().join(".layers")).find(|layers| layers.is_dir())
    }
}

impl Drop for BenchRepository {
    fn drop(&mut self) {
        // Best effort.
        _ = fs::remove_dir_all(&self.home);
    }
}

fn used_kib(directory: &Path) -> std::io::Result<f64> {
    let mut sum = 0.0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        sum += std::os::unix::fs::MetadataExt::blocks(&meta) as f64 / 2.0;
        if meta.is_dir() {
            sum += used_kib(&entry.path())?;
        }
    }
    Ok(sum)
}
