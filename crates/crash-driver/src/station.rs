//! Where crash states are checked: a directory that holds one state at a time, and a keeper that
//! runs the user's command on it. Nothing that a check started outlives it.

use retake_types::text;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_crash::model::Tree;
use retake_engine::{
    Cancel, Command, Detach, Keeper, KeeperSession, KeeperSettings, Launch, LiveOutput,
    ProcessEvent, Stdin,
};
use retake_types::{Limits, Outcome, RefusalReason, signal_name};

use super::namespace::Home;
use super::scratch::Scratch;
use retake_runner::head_tail::Inline;
use retake_runner::signals;

/// How much of what a check prints is kept.
const OUTPUT: usize = 4096;

/// The user's command.
#[derive(Clone, Debug)]
pub struct Check {
    pub command: String,
    pub timeout: Duration,
    pub environment: Vec<(OsString, OsString)>,
    pub cwd: PathBuf,
}

/// What is to be checked.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    pub tree: &'a Tree,
    /// The number of the operation after which the crash came.
    pub operation: u32,
    pub label: Option<&'a str>,
    /// What had been promised.
    pub acks: &'a [&'a [u8]],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Failed {
        /// Such as `exited with 3`.
        how: String,
        output: String,
    },
    /// Someone asked for the end.
    Cancelled,
}

pub struct Station {
    keeper: Keeper,
    cancel: Cancel,
    /// Where the state lies.
    pub state: PathBuf,
    /// The path by which the check knows it.
    pub seen: PathBuf,
    acks: PathBuf,
    /// How many are in the file now.
    acked: Option<usize>,
    /// Whether something lies there that has to go first.
    used: bool,
}

/// All of them, and where they are.
pub struct Stations {
    pub stations: Vec<Station>,
    /// Why checks do not see the path that was recorded, if so.
    pub elsewhere: Option<String>,
    // Last: dropped when everything that works in it has ended.
    _scratch: Scratch,
}

impl Stations {
    /// Only for a process without threads and open records: keepers are forks. `owns_children` says
    /// that nothing else will start processes here.
    pub fn start(count: usize, root: &Path, owns_children: bool) -> io::Result<Self> {
        let scratch = Scratch::new(root)?;
        let dispositions = signals::original();
        let home = if root.is_dir() {
            Home::remember().map_err(|error| {
                format!("no mount namespace can be made here ({})", text::plain(&error))
            })
        } else {
            Err(format!("{} does not exist any more", root.display()))
        };
        let own_mounts = home.is_ok();
        let settings =
            KeeperSettings { session: KeeperSession::Own, dispositions, owns_children, own_mounts };
        let mut keepers = Vec::new();
        for number in 0..count {
            let place = scratch.path().join(number.to_string());
            let state = place.join("state");
            std::fs::create_dir_all(&state)?;
            if let Ok(home) = &home {
                home.cover(root, &state)?;
            }
            let keeper = Keeper::start(settings);
            if let Ok(home) = &home {
                home.return_home()?;
            }
            let seen = if home.is_ok() { root.to_owned() } else { state.clone() };
            keepers.push((keeper?, state, seen, place.join("acks")));
        }
        let cancels = signals::install(count)?;
        let stations =
            keepers.into_iter().zip(cancels).map(|((keeper, state, seen, acks), cancel)| {
                let cancel = cancel.clone();
                Station { keeper, cancel, state, seen, acks, acked: None, used: false }
            });
        let elsewhere = home.err().map(|why| {
            format!("{why}: states were checked in other directories, named by FIRST_WORK_DIR")
        });
        Ok(Self { stations: stations.collect(), elsewhere, _scratch: scratch })
    }
}

impl Station {
    /// Puts the state there; what was there is gone.
    pub fn place(&mut self, tree: &Tree) -> io::Result<()> {
        if self.used {
            clear(&self.state)?;
        }
        self.used = true;
        retake_crash::materialise(tree, &self.state)
    }

    pub fn check(&mut self, check: &Check, scene: Scene<'_>) -> io::Result<Verdict> {
        self.place(scene.tree)?;
        self.check_what_is_there(check, scene)
    }

    /// The variables of a check, beside those of everybody.
    pub fn variables(&mut self, scene: Scene<'_>) -> io::Result<[(OsString, OsString); 4]> {
        if self.acked != Some(scene.acks.len()) {
            let mut file = BufWriter::new(File::create(&self.acks)?);
            for ack in scene.acks {
                file.write_all(ack)?;
                file.write_all(b"\n")?;
            }
            file.flush()?;
            self.acked = Some(scene.acks.len());
        }
        Ok([
            ("FIRST_WORK_DIR".into(), self.seen.clone().into()),
            ("FIRST_ACKS".into(), self.acks.clone().into()),
            ("FIRST_CRASH_POINT_ID".into(), scene.operation.to_string().into()),
            ("FIRST_CRASH_LABEL".into(), scene.label.unwrap_or_default().into()),
        ])
    }

    fn check_what_is_there(&mut self, check: &Check, scene: Scene<'_>) -> io::Result<Verdict> {
        let mut environment = check.environment.clone();
        environment.retain(|(name, _)| !name.as_encoded_bytes().starts_with(b"FIRST_"));
        environment.extend(self.variables(scene)?);
        let command = Command::new(Launch {
            arguments: ["/bin/sh", "-c", &check.command].map(OsString::from).to_vec(),
            cwd: check.cwd.clone(),
            environment,
            timeout: Some(check.timeout),
            // A check that is too slow has failed; it has nothing to tidy up.
            grace: Duration::ZERO,
            limits: Limits::default(),
            nice: None,
            stdin: Stdin::Null,
            pty: false,
            detach: Detach::None,
        })
        .map_err(|problems| io::Error::other(RefusalReason::listed(&problems)))?;
        let mut output = Inline::new(OUTPUT);
        let finished =
            self.keeper.run(&command, &self.cancel, LiveOutput::default(), &mut |event| {
                if let ProcessEvent::Output { bytes, .. } = event {
                    output.push(bytes);
                }
            });
        let how = match finished.outcome {
            Outcome::Exited(0) => return Ok(Verdict::Passed),
            Outcome::Cancelled(_) => return Ok(Verdict::Cancelled),
            Outcome::Exited(code) => format!("exited with {code}"),
            Outcome::Signaled(signal) => format!("was ended by {}", signal_name(signal)),
            Outcome::TimedOut => format!("did not end within {}", text::duration(check.timeout)),
            Outcome::LimitExceeded(limit, _) => format!("exceeded its {limit} limit"),
            Outcome::NotStarted(failure) => return Err(io::Error::other(failure.to_string())),
            Outcome::Interrupted => {
                return Err(io::Error::other("the process that ran the check was killed"));
            }
        };
        let output = String::from_utf8_lossy(&output.finish()).trim_end().to_owned();
        Ok(Verdict::Failed { how, output })
    }
}

/// Empties a directory that itself has to stay. Checks may have taken rights away.
fn clear(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(directory, PermissionsExt::from_mode(0o700))?;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            if std::fs::remove_dir_all(entry.path()).is_err() {
                clear(&entry.path())?;
                std::fs::remove_dir(entry.path())?;
            }
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
