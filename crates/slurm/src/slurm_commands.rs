//! Commands of Slurm, and parsers of their output. Decides nothing.
//!
//! Submissions are found by name, never by number: a controller that lost its state reuses
//! numbers.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use retake_types::config::SlurmConfig;

use crate::batch_dir::{BatchDir, BatchManifest};
use crate::error::Error;
use crate::slurm_programs::{ProgramError, SlurmPrograms};

/// Where and how to run jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlurmTarget {
    /// Options of `sbatch`.
    pub options: Vec<String>,
    /// Maximum number of simultaneous cells; 0 for no limit.
    pub max_in_flight: usize,
    pub pack: usize,
    /// How long a result may take to become visible.
    pub visible_after: Duration,
    /// Whether the setup of a matrix runs on a node.
    pub setup_on_node: bool,
}

impl SlurmTarget {
    /// The target as the user gives it: `slurm`, or `slurm:PARTITION`.
    pub fn parse(text: &str, config: &SlurmConfig) -> Result<Self, Error> {
        let partition = match text.split_once(':') {
            None if text == "slurm" => config.partition.clone(),
            Some(("slurm", partition)) if !partition.is_empty() => Some(partition.to_owned()),
            _ => return Err(Error::UnknownTarget(text.to_owned())),
        };
        let mut options = Vec::new();
        let mut put = |name: &str, value: Option<&String>| {
            options.extend(value.map(|value| format!("--{name}={value}")));
        };
        put("partition", partition.as_ref());
        put("account", config.account.as_ref());
        put("qos", config.qos.as_ref());
        options.extend(config.options.iter().cloned());
        let number = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        Ok(Self {
            options,
            max_in_flight: number(config.max_in_flight),
            pack: number(config.pack),
            visible_after: config.visible_after,
            setup_on_node: config.setup_on_node,
        })
    }
}

/// The limits of the site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SiteLimits {
    /// Maximum number of tasks in an array.
    pub array: usize,
    /// Maximum number of jobs in the controller, including each task of an array.
    pub jobs: Option<usize>,
}

/// A task as reported by Slurm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskRow {
    pub job: String,
    pub state: String,
    pub reason: String,
    pub node: Option<String>,
    /// The wait status, if there is one.
    pub status: i32,
}

impl TaskRow {
    /// Whether it has not started.
    pub(crate) fn is_pending(&self) -> bool {
        self.state == "PENDING"
    }
}

/// Slurm's answer: by submission and task. A missing task may be in any state.
pub(crate) type TaskRows = HashMap<(usize, usize), TaskRow>;

/// Exit code of a task whose machine does not see the shared directory.
pub(crate) const NO_SHARED_DIR: i32 = 97;
/// Exit code of a task that could not leave a result because the shared directory is full.
pub(crate) const SHARED_DIR_FULL: u8 = 98;

const FORMAT: &str =
    "ArrayJobID:24,ArrayTaskID:24,State:24,Reason:64,NodeList:128,exit_code:16,Name:96";
const WIDTHS: [usize; 7] = [24, 24, 24, 64, 128, 16, 96];

pub(crate) fn site_limits(programs: &mut SlurmPrograms<'_>) -> Result<SiteLimits, ProgramError> {
    let config = programs.run(&["scontrol", "show", "config"])?;
    Ok(read_site_limits(&config))
}

fn read_site_limits(config: &str) -> SiteLimits {
    let limit = |key: &str| {
        config.lines().find_map(|line| {
            let (name, value) = line.split_once('=')?;
            (name.trim() == key).then(|| value.trim().parse::<usize>().ok())?
        })
    };
    // A site without arrays reports 0; tasks are then submitted one by one.
    SiteLimits {
        array: limit("MaxArraySize").unwrap_or(1001).max(2) - 1,
        jobs: limit("MaxJobCount"),
    }
}

/// The name of a submission.
pub(crate) fn job_name(key: &str, submission: usize) -> String {
    format!("{key}-{submission}")
}

/// The script of a task: checks whether its machine sees the shared directory, and executes
/// the runner for the task's part of the list. It starts no other program, which would take a large part
/// of a short cell's time.
pub(crate) fn script(batch_dir: &BatchDir, program: &Path, pack: usize) -> String {
    let dir = quoted(batch_dir.path());
    let program = quoted(program);
    format!(
        "#!/bin/sh\n\
         cd {dir} 2>/dev/null && test -x {program} || {{\n\
         \x20 echo \"retake: $(hostname) does not see {dir}\" >&2\n\
         \x20 exit {NO_SHARED_DIR}\n\
         }}\n\
         submission=${{SLURM_JOB_NAME##*-}}\n\
         exec 2>>log/on.$SLURMD_NODENAME >&2\n\
         exec {program} __run-one list/$submission $SLURM_ARRAY_TASK_ID {pack} \
         log/$submission.$SLURM_ARRAY_TASK_ID\n"
    )
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

/// Submits a list, and returns the number that Slurm assigned.
pub(crate) fn submit(
    programs: &mut SlurmPrograms<'_>,
    batch_dir: &BatchDir,
    manifest: &BatchManifest,
    submission: usize,
    tasks: usize,
) -> Result<String, ProgramError> {
    let name = job_name(&manifest.key, submission);
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
        // Anything but ALL makes Slurm load a login environment for each task.
        "--export=ALL".to_owned(),
        "--input=/dev/null".to_owned(),
        // If the output file cannot be opened, a task fails before the script can report why.
        "--output=/dev/null".to_owned(),
        "--chdir=/".to_owned(),
        if manifest.repeatable { "--requeue" } else { "--no-requeue" }.to_owned(),
    ];
    arguments.extend(manifest.minutes.map(|minutes| format!("--time={minutes}")));
    arguments.extend(manifest.options.iter().cloned());
    arguments.push(batch_dir.script().display().to_string());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let answer = programs.run(&arguments)?;
    // With several clusters: `12;cluster`.
    Ok(answer.trim().split(';').next().unwrap_or_default().to_owned())
}

/// Everything that Slurm knows about these submissions.
pub(crate) fn query_tasks(
    programs: &mut SlurmPrograms<'_>,
    key: &str,
    submissions: &[usize],
) -> Result<TaskRows, ProgramError> {
    if submissions.is_empty() {
        return Ok(TaskRows::new());
    }
    let names: Vec<String> =
        submissions.iter().map(|submission| job_name(key, *submission)).collect();
    let names = format!("--name={}", names.join(","));
    let arguments =
        ["squeue", "--noheader", "--array", "--me", "--states=all", &names, "--Format", FORMAT];
    Ok(rows(&programs.run(&arguments)?, key))
}

fn rows(text: &str, key: &str) -> TaskRows {
    let mut rows = TaskRows::new();
    for line in text.lines() {
        let Some(fields) = fields(line) else { continue };
        let [job, task, state, reason, node, status, name] = fields;
        let submission =
            name.strip_prefix(key).and_then(|rest| rest.strip_prefix('-')?.parse().ok());
        let (Some(submission), Ok(task)) = (submission, task.parse()) else { continue };
        let row = TaskRow {
            job: job.to_owned(),
            state: state.to_owned(),
            reason: reason.to_owned(),
            node: Some(node)
                .filter(|node| !node.is_empty() && *node != "(null)")
                .map(str::to_owned),
            status: status.parse().unwrap_or(0),
        };
        rows.insert((submission, task), row);
    }
    rows
}

/// Columns have fixed widths: a reason may contain spaces.
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

/// Cancels all pending and running tasks of these submissions. Missing ones are fine.
pub(crate) fn cancel(
    programs: &mut SlurmPrograms<'_>,
    key: &str,
    submissions: &[usize],
) -> Result<(), ProgramError> {
    for submission in submissions {
        programs.run(&[
            "scancel",
            "--quiet",
            "--me",
            &format!("--name={}", job_name(key, *submission)),
        ])?;
    }
    Ok(())
}

/// Cancels one task.
pub(crate) fn cancel_task(
    programs: &mut SlurmPrograms<'_>,
    job: &str,
    task: usize,
    name: &str,
) -> Result<(), ProgramError> {
    programs.run(&[
        "scancel",
        "--quiet",
        "--me",
        &format!("--name={name}"),
        &format!("{job}_{task}"),
    ])?;
    Ok(())
}

/// Releases a task that Slurm holds.
pub(crate) fn release(
    programs: &mut SlurmPrograms<'_>,
    job: &str,
    task: usize,
) -> Result<(), ProgramError> {
    programs.run(&["scontrol", "release", &format!("{job}_{task}")])?;
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
        assert_eq!(rows[&(11, 3)].status >> 8, NO_SHARED_DIR);
    }

    #[test]
    fn a_machine_that_does_not_see_the_directory_says_so_and_runs_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let batch_dir = BatchDir::at(&dir.path().join("it's"));
        let touched = dir.path().join("touched");
        let program = dir.path().join("program");
        std::fs::write(&program, format!("#!/bin/sh\necho \"$@\" > {}\n", touched.display()))
            .unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).unwrap();
        let run = || {
            std::process::Command::new("sh")
                .arg("-c")
                .arg(script(&batch_dir, &program, 2))
                .env("SLURM_JOB_NAME", "retake-x-3")
                .env("SLURM_ARRAY_TASK_ID", "1")
                .stderr(std::process::Stdio::null())
                .status()
                .unwrap()
                .code()
        };
        assert_eq!(run(), Some(NO_SHARED_DIR));
        assert!(!touched.exists());
        batch_dir.create().unwrap();
        assert_eq!(run(), Some(0));
        let arguments = std::fs::read_to_string(&touched).unwrap();
        assert_eq!(arguments, "__run-one list/3 1 2 log/3.1\n");
    }

    #[test]
    fn limits_of_a_site_are_read_from_its_configuration() {
        let text = "Configuration data as of 2026\nMaxArraySize            = 1001\n\
                    MaxJobCount             = 10000\nMaxJobId                = 67043328\n";
        assert_eq!(read_site_limits(text), SiteLimits { array: 1000, jobs: Some(10_000) });
        assert_eq!(read_site_limits("MaxArraySize = 0"), SiteLimits { array: 1, jobs: None });
    }

    #[test]
    fn a_target_is_read_with_the_partition_before_the_configured_one() {
        let config = SlurmConfig::default();
        assert_eq!(SlurmTarget::parse("slurm", &config).unwrap().options, [""; 0]);
        assert_eq!(SlurmTarget::parse("slurm:big", &config).unwrap().options, ["--partition=big"]);
        for wrong in ["", "slurm:", "pbs", "slurmx", ":x"] {
            let error = SlurmTarget::parse(wrong, &config).unwrap_err();
            assert!(matches!(error, Error::UnknownTarget(text) if text == wrong));
        }
    }
}
