//! `retake tour`: the main jobs, shown with real runs in a project of their own.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_engine::{
    Cancel, Command, Keeper, KeeperSettings, Launch, LiveOutput, ProcessEvent, ProcessResult, quote,
};
use retake_runner::project::Project;
use retake_runner::signals;
use retake_types::{RefusalReason, RunId};

use super::{Exit, Failure};
use crate::term;

/// See what retake does, with real runs in a temporary project; under a minute
#[derive(clap::Args)]
pub(crate) struct Args {}

struct Tour {
    keeper: Keeper,
    cancel: Cancel,
    program: PathBuf,
    home: PathBuf,
}

pub(crate) fn tour(_: &Args) -> Result<Exit, Failure> {
    let failed =
        |what: &str, error: &dyn std::fmt::Display| Failure::Refused(format!("{what}: {error}"));
    let home = std::env::temp_dir().join(format!("retake-tour-{}", RunId::new().short()));
    let project = home.join("project");
    std::fs::create_dir_all(&project).map_err(|e| failed("no directory for the tour", &e))?;
    let settings = KeeperSettings {
        dispositions: signals::original(),
        owns_children: true,
        ..KeeperSettings::default()
    };
    let mut tour = Tour {
        keeper: Keeper::start(settings).map_err(|e| failed("could not start a process", &e))?,
        cancel: signals::install(1).map_err(|e| failed("no event descriptor", &e))?[0].clone(),
        program: std::env::current_exe().map_err(|e| failed("retake cannot find itself", &e))?,
        home: home.clone(),
    };
    let told = tour.tell();
    let stopped = tour.cancel.requested();
    drop(tour);
    signals::uninstall();
    // What the tour made is of no use afterwards; what cannot be removed is in /tmp.
    _ = std::fs::remove_dir_all(&home);
    match (stopped, told) {
        (Some(signal), _) => Ok(Exit::Signal(signal)),
        (None, Ok(())) => Ok(Exit::OK),
        (None, Err(error)) => Err(failed("the tour could not go on", &error)),
    }
}

impl Tour {
    fn tell(&mut self) -> std::io::Result<()> {
        say("retake runs commands and remembers every run. This tour takes a temporary project,")?;
        say(&format!("{}, and removes it afterwards.", self.home.display()))?;
        self.show(&["init"])?;

        stop("One command. Its output passes through, its exit code becomes retake's own.")?;
        self.show(&["exec", "echo hello"])?;
        self.show(&["exec", "exit 42"])?;

        stop("A timeout ends the whole tree and keeps what was written before.")?;
        self.show(&[
            "exec",
            "--timeout",
            "1",
            "--",
            "sh",
            "-c",
            "echo connecting to db; sleep 60",
        ])?;

        stop(
            "Something left running in the background does not hang the run: it is ended and named.",
        )?;
        self.show(&["exec", "--", "sh", "-c", "sleep 1000 & echo started a server"])?;

        stop("Limits hold for everything the command starts.")?;
        self.show(&["exec", "--limit", "cpu=0.5s", "--", "sh", "-c", "while :; do :; done"])?;

        stop("Secrets reach the command, not the record.")?;
        let token = [("API_TOKEN", "tour-secret-0451")];
        self.show_with(&token, &["exec", "--", "sh", "-c", "echo using $API_TOKEN"])?;
        self.show(&["runs", "logs", "last"])?;

        stop("Every run is on the record.")?;
        self.show(&["runs", "list"])?;
        self.show(&["runs", "search", "connecting"])?;

        stop("Two runs of the same thing, compared.")?;
        let build = "echo compiling; cat result; ! grep -q failed result";
        for result in ["12 tests passed\n", "11 tests passed, 1 failed\n"] {
            std::fs::write(self.project().join("result"), result)?;
            self.show(&["exec", "--", "sh", "-c", build])?;
        }
        let [newer, older] = self.newest_two()?;
        self.show(&["runs", "diff", &older, &newer])?;

        stop("What a run did: the files it changed, the tests it ran.")?;
        let suite = "echo 'not ok 1 - adds' > suite; cat suite; echo 1..1; exit 1";
        self.show(&["exec", "-q", "--track", "--tests", suite])?;
        self.show(&["runs", "list", "--changed", "suite"])?;
        self.show(&["tests"])?;

        stop("A coding agent in a loop, until it says that it is done. This one only pretends.")?;
        self.show(&["agent", "init", "task", "--delay", "0"])?;
        let instructions = self.project().join(".agent/workspaces/task/INSTRUCTIONS.md");
        std::fs::write(instructions, "Make the suite pass.\n")?;
        self.show(&["agent", "run", "task", "--dry-run"])?;
        self.show(&["agent", "show", "task"])?;

        stop("A command over several values, until the numbers say which is faster.")?;
        let matrix = "command: sleep $AXIS_PAUSE\niterations: 6\naxes: {pause: ['0.01', '0.03']}\n";
        std::fs::write(self.project().join("matrix.yml"), matrix)?;
        self.show(&["matrix", "run", "--quiet"])?;
        self.show(&["matrix", "status"])?;
        self.show(&["matrix", "compare", "0.01", "0.03"])?;

        stop("The record is a chain of hashes: an edit shows.")?;
        self.show(&["audit", "verify"])?;
        self.tamper()?;
        self.show(&["audit", "verify"])?;

        say("")?;
        say("That was the tour. `retake exec --help` and `retake runs --help` tell the rest.")
    }

    fn project(&self) -> PathBuf {
        self.home.join("project")
    }

    fn show(&mut self, arguments: &[&str]) -> std::io::Result<()> {
        self.show_with(&[], arguments)
    }

    /// Shows a command as it would be typed, runs it, and says how it ended.
    fn show_with(&mut self, set: &[(&str, &str)], arguments: &[&str]) -> std::io::Result<()> {
        let variables: String =
            set.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        say(&format!("\n  $ {variables}retake {}", quote(arguments.iter().copied())))?;
        let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
        let pass = LiveOutput { stdout: Some(stdout.as_fd()), stderr: Some(stderr.as_fd()) };
        let finished = self.run(set, arguments, pass, &mut |_| {})?;
        match finished.outcome.exit_code() {
            Some(0) => Ok(()),
            Some(code) => say(&format!("  (exit code {code})")),
            None => Err(std::io::Error::other("its process was killed")),
        }
    }

    fn run(
        &mut self,
        set: &[(&str, &str)],
        arguments: &[&str],
        attach: LiveOutput<'_>,
        observer: &mut dyn FnMut(ProcessEvent<'_>),
    ) -> std::io::Result<ProcessResult> {
        let words = [self.program.clone().into_os_string()].into_iter();
        let mut request = Launch::new(words.chain(arguments.iter().map(OsString::from)));
        request.cwd = self.project();
        request.timeout = Some(Duration::from_secs(30));
        // Looks as it would in the user's own terminal.
        request.pty = attach.stdout.is_some() && std::io::stdout().is_terminal();
        request.environment.retain(|(name, _)| {
            !name.to_string_lossy().starts_with("RETAKE_") && set.iter().all(|(n, _)| name != n)
        });
        let own = |name: &str, value: &Path| (OsString::from(name), value.as_os_str().to_owned());
        request.environment.extend([
            own("XDG_DATA_HOME", &self.home.join("data")),
            own("XDG_CONFIG_HOME", &self.home.join("config")),
            own("PAGER", Path::new("cat")),
        ]);
        request.environment.extend(set.iter().map(|(n, v)| (OsString::from(n), OsString::from(v))));
        let command = Command::new(request)
            .map_err(|problems| std::io::Error::other(RefusalReason::listed(&problems)))?;
        let finished = self.keeper.run(&command, &self.cancel, attach, observer);
        if self.cancel.requested().is_some() {
            return Err(std::io::Error::other("interrupted"));
        }
        Ok(finished)
    }

    /// The ids of the two newest runs, as lists show them.
    fn newest_two(&mut self) -> std::io::Result<[String; 2]> {
        let mut text = Vec::new();
        let list = ["runs", "list", "--json", "--limit", "2"];
        self.run(&[], &list, LiveOutput::default(), &mut |event| {
            if let ProcessEvent::Output { bytes, .. } = event {
                text.extend_from_slice(bytes);
            }
        })?;
        let runs: serde_json::Value = serde_json::from_slice(&text)?;
        let short = |at: usize| -> Option<String> {
            let id: RunId = runs[at]["id"].as_str()?.parse().ok()?;
            Some(id.short())
        };
        match (short(0), short(1)) {
            (Some(newer), Some(older)) => Ok([newer, older]),
            _ => Err(std::io::Error::other("the record has no two runs")),
        }
    }

    /// Edits the record behind retake's back, as anyone with the file can.
    fn tamper(&self) -> std::io::Result<()> {
        let edit = "UPDATE runs SET exit_code = 0, status = 0 WHERE command = 'exit 42'";
        let project = Project::find(&self.project(), None).map_err(std::io::Error::other)?;
        let database = project.store().map_err(std::io::Error::other)?.join("retake.db");
        let shown = database.strip_prefix(self.project()).unwrap_or(&database);
        say(&format!("\n  $ sqlite3 {} \"{edit}\"", shown.display()))?;
        rusqlite::Connection::open(database)
            .and_then(|connection| connection.execute(edit, []))
            .map_err(std::io::Error::other)?;
        Ok(())
    }
}

fn stop(caption: &str) -> std::io::Result<()> {
    say(&format!("\n{caption}"))
}

fn say(text: &str) -> std::io::Result<()> {
    term::data(format!("{text}\n").as_bytes())
}
