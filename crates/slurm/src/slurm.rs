//! What is asked of Slurm, and what it answers. Nothing here decides anything.
//!
//! Submissions are found by name, never by number: a controller that lost its state gives a number
//! out twice.

use std::collections::HashMap;
use std::path::Path;

use super::batch::{Layout, Manifest};
use super::tools::{ToolError, Tools};
use retake_runner::config::Config;

/// Where and how jobs are to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Options of `sbatch`.
    pub options: Vec<String>,
    /// Cells at once; 0 for no limit.
    pub max_in_flight: usize,
    pub pack: usize,
}

impl Target {
    /// What `--on` asks for: `slurm`, or `slurm:PARTITION`.
    pub fn of(on: &str, config: &Config) -> Result<Self, String> {
        let partition = match on.split_once(':') {
            None if on == "slurm" => config.text("slurm.partition").map(str::to_owned),
            Some(("slurm", partition)) if !partition.is_empty() => Some(partition.to_owned()),
            _ => return Err(format!("--on takes slurm or slurm:PARTITION, not {on}")),
        };
        let mut options = Vec::new();
        let mut put = |name: &str, value: Option<String>| {
            options.extend(value.map(|value| format!("--{name}={value}")));
        };
        put("partition", partition);
        put("account", config.text("slurm.account").map(str::to_owned));
        put("qos", config.text("slurm.qos").map(str::to_owned));
        options.extend(config.words("slurm.options").iter().cloned());
        let number = |key: &str| usize::try_from(config.number(key)).unwrap_or(usize::MAX);
        Ok(Self {
            options,
            max_in_flight: number("slurm.max_in_flight"),
            pack: number("slurm.pack"),
        })
    }
}

/// What the site allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Tasks in one array.
    pub array: usize,
}

/// One task as Slurm sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub job: String,
    pub state: String,
    pub reason: String,
    pub node: Option<String>,
    /// A wait status, if it is one.
    pub status: i32,
}

impl Row {
    /// Whether it has not begun.
    pub fn waits(&self) -> bool {
        self.state == "PENDING"
    }
}

/// Slurm's answer: by submission and task. A task that is not in it may be anything.
pub type Rows = HashMap<(usize, usize), Row>;

/// Exit code of a task whose machine does not see the shared directory.
pub const BLIND: i32 = 97;

const FORMAT: &str =
    "ArrayJobID:24,ArrayTaskID:24,State:24,Reason:64,NodeList:128,exit_code:16,Name:96";
const WIDTHS: [usize; 7] = [24, 24, 24, 64, 128, 16, 96];

pub fn site(tools: &mut Tools<'_>) -> Result<Site, ToolError> {
    let config = tools.run(&["scontrol", "show", "config"])?;
    let limit = config.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == "MaxArraySize").then(|| value.trim().parse::<usize>().ok())?
    });
    // A site without arrays says 0; tasks are then submitted one by one.
    Ok(Site { array: limit.unwrap_or(1001).max(2) - 1 })
}

/// The name of a submission.
pub fn name(key: &str, round: usize) -> String {
    format!("{key}-{round}")
}

/// What a machine starts for a task: finds out whether it sees the shared directory, and becomes
/// the runner of the cells that the task's part of the list names.
pub fn script(layout: &Layout, program: &Path, pack: usize) -> String {
    let dir = quoted(layout.dir());
    let program = quoted(program);
    format!(
        "#!/bin/sh\n\
         cd {dir} 2>/dev/null && test -x {program} || {{\n\
         \x20 echo \"retake: $(hostname) does not see {dir}\" >&2\n\
         \x20 exit {BLIND}\n\
         }}\n\
         round=${{SLURM_JOB_NAME##*-}}\n\
         exec 2>>log/$round.$SLURM_ARRAY_TASK_ID >&2\n\
         from=$((SLURM_ARRAY_TASK_ID * {pack} + 1))\n\
         exec {program} __run-one $(sed -n \"$from,$((from + {pack} - 1))p\" list/$round)\n"
    )
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

/// Submits the list of a round and gives the number that Slurm gave it.
pub fn submit(
    tools: &mut Tools<'_>,
    layout: &Layout,
    manifest: &Manifest,
    round: usize,
    tasks: usize,
) -> Result<String, ToolError> {
    let name = name(&manifest.key, round);
    let cap = match manifest.at_once {
        0 => String::new(),
        cap => format!("%{cap}"),
    };
    let mut arguments: Vec<String> = vec![
        "sbatch".to_owned(),
        "--parsable".to_owned(),
        format!("--job-name={name}"),
        format!("--comment={}", manifest.key),
        format!("--array=0-{}{cap}", tasks - 1),
        // Anything but ALL makes Slurm look for a login environment, for each task anew.
        "--export=ALL".to_owned(),
        "--input=/dev/null".to_owned(),
        // A file that cannot be opened fails a task before the script can say why.
        "--output=/dev/null".to_owned(),
        "--chdir=/".to_owned(),
        if manifest.repeatable { "--requeue" } else { "--no-requeue" }.to_owned(),
    ];
    arguments.extend(manifest.minutes.map(|minutes| format!("--time={minutes}")));
    arguments.extend(manifest.options.iter().cloned());
    arguments.push(layout.script().display().to_string());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let answer = tools.run(&arguments)?;
    // With several clusters: `12;cluster`.
    Ok(answer.trim().split(';').next().unwrap_or_default().to_owned())
}

/// All that Slurm knows of these submissions.
pub fn query(tools: &mut Tools<'_>, key: &str, rounds: &[usize]) -> Result<Rows, ToolError> {
    if rounds.is_empty() {
        return Ok(Rows::new());
    }
    let names: Vec<String> = rounds.iter().map(|round| name(key, *round)).collect();
    let names = format!("--name={}", names.join(","));
    let arguments =
        ["squeue", "--noheader", "--array", "--me", "--states=all", &names, "--Format", FORMAT];
    Ok(rows(&tools.run(&arguments)?, key))
}

fn rows(text: &str, key: &str) -> Rows {
    let mut rows = Rows::new();
    for line in text.lines() {
        let Some(fields) = fields(line) else { continue };
        let [job, task, state, reason, node, status, name] = fields;
        let round = name.strip_prefix(key).and_then(|rest| rest.strip_prefix('-')?.parse().ok());
        let (Some(round), Ok(task)) = (round, task.parse()) else { continue };
        let row = Row {
            job: job.to_owned(),
            state: state.to_owned(),
            reason: reason.to_owned(),
            node: Some(node)
                .filter(|node| !node.is_empty() && *node != "(null)")
                .map(str::to_owned),
            status: status.parse().unwrap_or(0),
        };
        rows.insert((round, task), row);
    }
    rows
}

/// Columns have fixed widths: a reason may have spaces in it.
fn fields(line: &str) -> Option<[&str; 7]> {
    let mut rest = line;
    let mut fields = [""; 7];
    for (field, width) in fields.iter_mut().zip(WIDTHS) {
        let end = rest.char_indices().nth(width).map_or(rest.len(), |(at, _)| at);
        let (this, more) = rest.split_at(end);
        *field = this.trim();
        rest = more;
    }
    (!fields[6].is_empty()).then_some(fields)
}

/// Ends whatever of these submissions waits or runs. One that is gone is fine.
pub fn cancel(tools: &mut Tools<'_>, key: &str, rounds: &[usize]) -> Result<(), ToolError> {
    for round in rounds {
        tools.run(&["scancel", "--quiet", "--me", &format!("--name={}", name(key, *round))])?;
    }
    Ok(())
}

/// Ends one task.
pub fn cancel_task(
    tools: &mut Tools<'_>,
    job: &str,
    task: usize,
    name: &str,
) -> Result<(), ToolError> {
    tools.run(&[
        "scancel",
        "--quiet",
        "--me",
        &format!("--name={name}"),
        &format!("{job}_{task}"),
    ])?;
    Ok(())
}

/// Lets go of a task that Slurm holds back.
pub fn release(tools: &mut Tools<'_>, job: &str, task: usize) -> Result<(), ToolError> {
    tools.run(&["scontrol", "release", &format!("{job}_{task}")])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(fields: [&str; 7]) -> String {
        fields.iter().zip(WIDTHS).map(|(field, width)| format!("{field:width$}")).collect()
    }

    #[test]
    fn answers_are_read_by_column() {
        let held = "launch failed requeued held";
        let text = [
            line(["7", "0", "RUNNING", "None", "n1", "0", "rt-ab-c-0"]),
            line(["7", "12", "PENDING", held, "", "0", "rt-ab-c-0"]),
            line(["9", "3", "FAILED", "NonZeroExitCode", "n[1-2]", "24832", "rt-ab-c-11"]),
            line(["9", "N/A", "PENDING", "None", "", "0", "rt-ab-c-11"]),
            line(["9", "4", "PENDING", "None", "", "0", "someone-else-0"]),
            "squeue: warning".to_owned(),
        ]
        .join("\n");
        let rows = rows(&text, "rt-ab-c");
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[&(0, 0)].node.as_deref(), Some("n1"));
        assert_eq!((rows[&(0, 12)].reason.as_str(), &rows[&(0, 12)].node), (held, &None));
        assert_eq!(rows[&(11, 3)].status >> 8, BLIND);
    }

    #[test]
    fn a_machine_that_does_not_see_the_directory_says_so_and_runs_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::at(&dir.path().join("it's"));
        let touched = dir.path().join("touched");
        let program = dir.path().join("program");
        std::fs::write(&program, format!("#!/bin/sh\necho \"$@\" > {}\n", touched.display()))
            .unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).unwrap();
        let run = || {
            std::process::Command::new("sh")
                .arg("-c")
                .arg(script(&layout, &program, 2))
                .env("SLURM_JOB_NAME", "retake-x-3")
                .env("SLURM_ARRAY_TASK_ID", "1")
                .stderr(std::process::Stdio::null())
                .status()
                .unwrap()
                .code()
        };
        assert_eq!(run(), Some(BLIND));
        assert!(!touched.exists());
        layout.make().unwrap();
        std::fs::write(layout.list(3), "order/4.json\norder/5.json\norder/6.json\n").unwrap();
        assert_eq!(run(), Some(0));
        let words = std::fs::read_to_string(&touched).unwrap();
        assert_eq!(words, "__run-one order/6.json\n");
    }

    #[test]
    fn a_target_is_read_with_the_partition_before_the_configured_one() {
        let config = Config::load(None).unwrap();
        assert_eq!(Target::of("slurm", &config).unwrap().options, [""; 0]);
        assert_eq!(Target::of("slurm:big", &config).unwrap().options, ["--partition=big"]);
        for wrong in ["", "slurm:", "pbs", "slurmx", ":x"] {
            assert!(Target::of(wrong, &config).unwrap_err().contains("slurm:PARTITION"));
        }
    }
}
