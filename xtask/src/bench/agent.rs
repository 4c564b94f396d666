//! The cost of a loop beyond its agent: per iteration, per byte of event stream, and while it waits.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::exec::timed;
use super::median;
use crate::page::Page;

const ROUNDS: usize = 7;
const FEW: u64 = 1;
const MANY: u64 = 21;
const WAITED: u64 = 10;

pub(crate) fn run() -> Result<(), String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let retake = own.with_file_name("retake");
    let project = BenchProject::new()?;
    let mut page = Page::new(
        "agent: the cost of the loop",
        "`cargo xtask bench agent` writes this page. Medians of interleaved rounds; CPU time is user and system \
         together, children included.",
    );
    iterations(&mut page, &retake, &project)?;
    stream(&mut page, &retake, &project)?;
    waiting(&mut page, &retake, &project)?;
    page.write("agent.md")
}

/// A project with a workspace and an agent that is a shell script.
pub(super) struct BenchProject {
    home: PathBuf,
}

impl BenchProject {
    pub(super) fn new() -> Result<Self, String> {
        let home = std::env::temp_dir().join(format!("retake-bench-agent-{}", std::process::id()));
        fs::create_dir_all(home.join("project/.agent")).map_err(|error| error.to_string())?;
        Ok(Self { home })
    }

    pub(super) fn project(&self) -> PathBuf {
        self.home.join("project")
    }

    pub(super) fn agent(&self, name: &str, script: &str) -> Result<PathBuf, String> {
        let path = self.home.join(name);
        let text = format!("#!/bin/sh\n[ \"$1\" = --version ] && exit 0\n{script}\n");
        fs::write(&path, text)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
            .map_err(|error| error.to_string())?;
        Ok(path)
    }

    /// The command line of a loop with this many iterations.
    pub(super) fn command(
        &self,
        retake: &Path,
        agent: &Path,
        name: &str,
        options: &str,
    ) -> Result<Vec<String>, String> {
        let workspace = self.project().join(".agent/workspaces").join(name);
        let project = self.project().display().to_string();
        let retake = retake.display();
        if !workspace.exists() {
            let made = Command::new("sh")
                .args(["-c", &format!("cd {project} && {retake} agent init {name}")])
                .stdout(Stdio::null())
                .status();
            if !made.is_ok_and(|status| status.success()) {
                return Err(format!("no workspace {name}"));
            }
            fs::write(workspace.join("INSTRUCTIONS.md"), "Measure.\n")
                .map_err(|error| error.to_string())?;
        }
        let line = format!(
            "cd {project} && RETAKE_AGENT__CLAUDE__COMMAND={} exec {retake} agent run {name} -q {options}",
            agent.display()
        );
        Ok(vec!["sh".into(), "-c".into(), line])
    }
}

impl Drop for BenchProject {
    fn drop(&mut self) {
        // Best effort: it is in the temporary directory.
        _ = fs::remove_dir_all(&self.home);
    }
}

pub(super) const RESULT: &str = r#"{"type":"result","subtype":"success","is_error":false,"result":"ok","num_turns":1,"total_cost_usd":0.01,"session_id":"s","permission_denials":[]}"#;

fn iterations(page: &mut Page, retake: &Path, project: &BenchProject) -> Result<(), String> {
    page.section(
        "An iteration",
        "Loops of 1 and of 21 iterations of an agent that only prints its result; the difference, \
         divided by 20, without the cost of the agent itself. Files are tracked in an empty \
         project, output is searched for test results, every iteration is \
         recorded. Target: under 10 ms of CPU.",
    );
    let agent = project.agent("prints", &format!("cat >/dev/null; echo '{RESULT}'"))?;
    let bare = vec![
        "sh".to_owned(),
        "-c".into(),
        format!(
            "i=0; while [ $i -lt {MANY} ]; do {} </dev/null; i=$((i+1)); done",
            agent.display()
        ),
    ];
    let few = project.command(retake, &agent, "few", &format!("--no-delay -m {FEW}"))?;
    let many = project.command(retake, &agent, "many", &format!("--no-delay -m {MANY}"))?;
    let (mut loops, mut agents) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        eprint!("\riterations: round {} of {ROUNDS}", round + 1);
        let (_, few_us, _) = timed(&few)?;
        let (_, many_us, _) = timed(&many)?;
        let (_, bare_us, _) = timed(&bare)?;
        loops.push((many_us - few_us) / (MANY - FEW) as f64 / 1000.0);
        agents.push(bare_us / MANY as f64 / 1000.0);
    }
    eprintln!();
    let (whole, agent) = (median(&loops), median(&agents));
    page.table(
        &["", "CPU ms per iteration"],
        &[
            vec!["loop and agent".into(), format!("{whole:.2}")],
            vec!["agent alone".into(), format!("{agent:.2}")],
            vec!["loop".into(), format!("{:.2}", whole - agent)],
        ],
    );
    Ok(())
}

fn stream(page: &mut Page, retake: &Path, project: &BenchProject) -> Result<(), String> {
    page.section(
        "An event stream of 1 GiB",
        "One iteration whose agent writes 1 GiB of events (tool results of 2 KB): captured, \
         hashed, redacted, recorded, logged, searched for test results. Once with a single \
         repeated letter, the least work; once with this project's sources, which have escapes, \
         many lines, and words that test runners use; and once with the sources as an agent gets \
         them, each after the call that reads or greps them, and one in eight from a command. \
         `cat` to a file reads the same pipe. MB per CPU second includes the agent's own `cat`, \
         and is independent of other load. The disk then holds the output, once, and a log of at \
         most 64 MiB. Targets: 200 MB per CPU second, under 32 MiB.",
    );
    let mut rows = Vec::new();
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    for name in STREAMS {
        let file = project.home.join("events");
        // In a separate process: this one's peak memory would count as that of the processes it starts.
        let mut writer = Command::new(&own);
        crate::test::succeed(writer.args(["spin", "agent", name]).arg(&file))?;
        let size = fs::metadata(&file).map_err(|error| error.to_string())?.len() as f64 / 1e6;
        let script = format!("cat >/dev/null; cat {}; echo '{RESULT}'", file.display());
        let agent = project.agent("spews", &script)?;
        let ours = project.command(retake, &agent, "spew", "--no-delay -m 1")?;
        let copy = project.home.join("copy").display().to_string();
        let plain =
            vec!["sh".to_owned(), "-c".into(), format!("cat {} | cat > {copy}", file.display())];
        let (mut loops, mut cats, mut memory, mut work) = (vec![], vec![], vec![], vec![]);
        let mut written = vec![];
        for round in 0..3 {
            eprint!("\rstream of {name}: round {} of 3", round + 1);
            let before = bytes_below(&project.project()).map_err(|error| error.to_string())?;
            let (wall, cpu, rss) = timed(&ours)?;
            let after = bytes_below(&project.project()).map_err(|error| error.to_string())?;
            written.push((after - before) / 1e6 / size);
            loops.push(size / (wall / 1e6));
            work.push(size / (cpu / 1e6));
            memory.push(rss / 1024.0);
            let (wall, _, _) = timed(&plain)?;
            cats.push(size / (wall / 1e6));
        }
        eprintln!();
        rows.push(vec![
            format!("retake agent run, {name}"),
            format!("{:.0}", median(&loops)),
            format!("{:.0}", median(&work)),
            format!("{:.1}", median(&memory)),
            format!("{:.2}", median(&written)),
        ]);
        let cat = format!("{:.0}", median(&cats));
        rows.push(vec![
            format!("cat | cat > file, {name}"),
            cat,
            "-".into(),
            "-".into(),
            "1.00".into(),
        ]);
    }
    page.table(&["", "MB/s", "MB per CPU second", "peak MiB", "on disk, times the stream"], &rows);
    Ok(())
}

/// The size of all files below a directory.
pub(super) fn bytes_below(directory: &Path) -> std::io::Result<f64> {
    let mut sum = 0.0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        sum += if metadata.is_dir() { bytes_below(&entry.path())? } else { metadata.len() as f64 };
    }
    Ok(sum)
}

/// The content of a stream's events.
const STREAMS: [&str; 3] = ["one letter", "sources", "sources, with calls"];

/// `NAME FILE`: writes a stream.
pub(super) fn spin(batch: &[&str]) -> Result<(), String> {
    let &[name, file] = batch else { return Err("spin agent NAME FILE".into()) };
    let (contents, calls) = match name {
        "one letter" => (vec!["x".repeat(2000)], Calls::Unknown),
        "sources" => (sources()?, Calls::Unknown),
        _ => (sources()?, Calls::Named),
    };
    events(Path::new(file), &contents, calls).map_err(|error| error.to_string())
}

/// Whether results follow the calls they belong to.
#[derive(Clone, Copy, PartialEq)]
enum Calls {
    Unknown,
    Named,
}

/// Text for an agent to read: this project, in pieces.
fn sources() -> Result<Vec<String>, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("crates");
    let mut text = String::new();
    let mut open = vec![root];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).map_err(|error| error.to_string())? {
            let path = entry.map_err(|error| error.to_string())?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text += &fs::read_to_string(&path).map_err(|error| error.to_string())?;
            }
        }
    }
    let characters: Vec<char> = text.chars().collect();
    Ok(characters.chunks(2000).map(|piece| piece.iter().collect()).collect())
}

/// Writes a gigabyte of tool results.
fn events(file: &Path, contents: &[String], calls: Calls) -> std::io::Result<()> {
    let mut block = String::new();
    while block.len() < 1 << 20 {
        for (number, content) in contents.iter().enumerate() {
            let id = format!("toolu_{number}");
            if calls == Calls::Named {
                let (name, input) = match number % 8 {
                    0 => ("Bash", serde_json::json!({"command": "cargo build"})),
                    1..4 => ("Grep", serde_json::json!({"pattern": "fn .*test", "path": "src"})),
                    _ => ("Read", serde_json::json!({"file_path": "/project/src/lib.rs"})),
                };
                let call = serde_json::json!({"type": "assistant", "message": {"id": id, "content": [
                    {"type": "tool_use", "id": id, "name": name, "input": input}]}});
                block += &format!("{call}\n");
            }
            let result = serde_json::json!({"type": "user", "message": {"content": [
                {"type": "tool_result", "tool_use_id": id, "content": content}]}});
            block += &format!("{result}\n");
        }
    }
    let mut out = fs::File::create(file)?;
    for _ in 0..(1usize << 30).div_ceil(block.len()) {
        out.write_all(block.as_bytes())?;
    }
    Ok(())
}

fn waiting(page: &mut Page, retake: &Path, project: &BenchProject) -> Result<(), String> {
    page.section(
        "Waiting",
        "Two iterations with a delay of 10 s between them, minus the same without \
         delay. Target: under 0.5 % of a core.",
    );
    let agent = project.agent("prints", &format!("cat >/dev/null; echo '{RESULT}'"))?;
    let slow = project.command(retake, &agent, "slow", &format!("-m 2 -d {WAITED}"))?;
    let fast = project.command(retake, &agent, "fast", "-m 2 --no-delay")?;
    let mut shares = Vec::new();
    for round in 0..3 {
        eprint!("\rwaiting: round {} of 3", round + 1);
        let (_, slow_us, _) = timed(&slow)?;
        let (_, fast_us, _) = timed(&fast)?;
        shares.push((slow_us - fast_us).max(0.0) / (WAITED as f64 * 1e6) * 100.0);
    }
    eprintln!();
    page.table(&["", "% of a core"], &[vec!["waiting".into(), format!("{:.2}", median(&shares))]]);
    Ok(())
}
