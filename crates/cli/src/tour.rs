//! `retake tour`: the main features, shown with real runs in a temporary project.

use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use retake_engine::{LiveOutput, quote};
use retake_runner::project::Project;
use retake_types::RunId;

use super::{Exit, Failure};
use crate::own_runs::OwnRuns;
use crate::term;

/// See what retake does, with real runs in a temporary project; under a minute
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Inspects the test suite in the first iteration and repairs it in the next one.
const PRETEND_AGENT: &str = r#"#!/bin/sh
cat > /dev/null
status=.agent/workspaces/task/.status.json
if [ -e notes ]; then
    echo 'ok 1 - adds' > suite
    echo '{"complete": true, "progress": {"completed": 2, "total": 2}, "summary": "the suite passes"}' > $status
else
    echo 'adds fails' > notes
    echo '{"complete": false, "progress": {"completed": 1, "total": 2}, "summary": "found the failing test"}' > $status
fi
"#;

struct Tour {
    runs: OwnRuns,
}

pub(crate) fn tour(_: &Args) -> Result<Exit, Failure> {
    let mut tour = Tour { runs: OwnRuns::new("tour")? };
    let told = tour.tell();
    match (tour.runs.end(), told) {
        (Some(signal), _) => Ok(Exit::Signal(signal)),
        (None, Ok(())) => Ok(Exit::OK),
        (None, Err(error)) => Err(Failure::Refused(format!("the tour stopped: {error}"))),
    }
}

impl Tour {
    fn tell(&mut self) -> std::io::Result<()> {
        say("retake runs commands and remembers every run. This tour uses a temporary project,")?;
        say(&format!("{}, and removes it afterwards.", self.runs.home().display()))?;
        self.show(&["init"])?;

        stop("One command. Its output passes through, its exit code becomes retake's own.")?;
        self.show(&["exec", "echo hello"])?;
        self.show(&["exec", "exit 42"])?;

        stop("A timeout terminates the whole process tree and keeps the output written before.")?;
        self.show(&[
            "exec",
            "--timeout",
            "1",
            "--",
            "sh",
            "-c",
            "echo connecting to db; sleep 60",
        ])?;

        stop("A background process does not keep the run waiting: it is terminated and reported.")?;
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

        stop(
            "A coding agent in a loop, until the task is done. Here a script stands in for the agent.",
        )?;
        self.write_agent()?;
        self.show(&["agent", "init", "task", "--delay", "0"])?;
        let instructions = self.project().join(".agent/workspaces/task/INSTRUCTIONS.md");
        std::fs::write(instructions, "Make the suite pass.\n")?;
        self.show(&["agent", "config", "kind", "custom"])?;
        self.show(&["agent", "config", "command", "./pretend-agent"])?;
        self.show(&["agent", "run", "task", "--verify", "grep -q ^ok suite"])?;
        self.show(&["agent", "show", "task"])?;

        stop("One command with several values: which is faster?")?;
        let matrix = "command: sleep $AXIS_PAUSE\niterations: 6\naxes: {pause: ['0.01', '0.03']}\n";
        std::fs::write(self.project().join("matrix.yml"), matrix)?;
        self.show(&["matrix", "run", "--quiet"])?;
        self.show(&["matrix", "status"])?;
        self.show(&["matrix", "compare", "0.01", "0.03"])?;

        stop("The record is a chain of hashes: an edit is detected.")?;
        self.show(&["audit", "verify"])?;
        self.tamper()?;
        self.show(&["audit", "verify"])?;

        say("")?;
        say("That was the tour. Next: `retake --help`, and the quick starts in docs/guides.")
    }

    /// A custom agent like any other: it reads a prompt, changes files, and reports progress in its status file.
    fn write_agent(&self) -> std::io::Result<()> {
        let agent = self.project().join("pretend-agent");
        std::fs::write(&agent, PRETEND_AGENT)?;
        std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755))
    }

    fn project(&self) -> PathBuf {
        self.runs.project()
    }

    fn show(&mut self, arguments: &[&str]) -> std::io::Result<()> {
        self.show_with(&[], arguments)
    }

    /// Prints a command as a user would type it, runs it, and prints how it ended.
    fn show_with(&mut self, set: &[(&str, &str)], arguments: &[&str]) -> std::io::Result<()> {
        let variables: String =
            set.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        say(&format!("\n  $ {variables}retake {}", quote(arguments.iter().copied())))?;
        let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
        let pass = LiveOutput { stdout: Some(stdout.as_fd()), stderr: Some(stderr.as_fd()) };
        let finished = self.runs.run(set, arguments, pass, &mut |_| {})?;
        match finished.outcome.exit_code() {
            Some(0) => Ok(()),
            Some(code) => say(&format!("  (exit code {code})")),
            None => Err(std::io::Error::other("its process was killed")),
        }
    }

    /// The ids of the two newest runs, as lists show them.
    fn newest_two(&mut self) -> std::io::Result<[String; 2]> {
        let list = self.runs.ask(&[], &["runs", "list", "--json", "--limit", "2"])?;
        let runs: serde_json::Value = serde_json::from_slice(&list.stdout)?;
        let short = |at: usize| -> Option<String> {
            let id: RunId = runs[at]["id"].as_str()?.parse().ok()?;
            Some(id.short())
        };
        match (short(0), short(1)) {
            (Some(newer), Some(older)) => Ok([newer, older]),
            _ => Err(std::io::Error::other("the record has no two runs")),
        }
    }

    /// Edits the record directly, as anyone with access to the file can.
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
