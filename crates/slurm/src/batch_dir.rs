//! The directory of a batch: its files and their names. Every machine sees it.
//!
//! ```text
//! batch.json          what is run and how; complete before anything is submitted
//! script              what the scheduler starts
//! input               input of all cells, if any
//! requests            the request files of all cells, concatenated
//! requests.index      the position of each one in it
//! list/R, job/R       the cells of submission R; its number in the scheduler
//! started/N.ATTEMPT   cell N began, and on which machine: a link to machine/M
//! machine/M           the name of machine M
//! result/N            the result of cell N, and of cells that ended soon after it in the same task
//! done                one byte for each cell: 1 once its result is recorded
//! late/N.ATTEMPT      results that came after the recorded one
//! stopped/N.ATTEMPT   the state of an attempt when it was told to stop
//! cancel              the batch is cancelled, and because of which signal
//! scratch/N.ATTEMPT   a directory for the command of an attempt; .json for its metrics
//! tmp/                incomplete files
//! log/R.T             messages of a task's runner, if it had any
//! log/on.M            messages of runners on machine M that did not get as far as that
//! ```
//!
//! Files of a single cell (`started`, `result`) are removed once its result is recorded: on a network
//! file system the time of a listing grows with the number of names.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::num::ParseIntError;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use retake_types::{Intent, Kind, Redacted, RunId};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::cancelled_by::CancelledBy;
use crate::error::Error;
use crate::request_file::{BaseVariables, FilePart, RequestFile};

/// Version 1 had a file for each request.
const VERSION: u32 = 2;

/// A line of the index: the offset of a request, and its size.
const INDEX_LINE: usize = 16 + 1 + 8 + 1;

/// Maximum size of a quotation from a runner's log, in bytes and lines.
const LOG_QUOTED: u64 = 2048;
const LOG_LINES: usize = 3;

/// The content of `batch.json`: everything that a later process needs to collect the results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchManifest {
    pub version: u32,
    /// Identifies the batch in the scheduler.
    pub key: String,
    pub kind: Kind,
    /// The run of each cell.
    pub runs: Vec<RunId>,
    /// Number of cells in one task.
    pub pack: usize,
    /// Maximum number of simultaneous tasks; 0 for no limit.
    pub at_once: usize,
    /// Whether a cell may be run again if its machine was lost.
    pub repeatable: bool,
    /// The scheduler's own limit for a task, in minutes.
    pub minutes: Option<u64>,
    /// How long a result may take to become visible. Earlier releases did not wait.
    #[serde(default)]
    pub visible_after_ms: u64,
    pub options: Vec<String>,
}

impl BatchManifest {
    pub fn new(key: String, kind: Kind, runs: Vec<RunId>) -> Self {
        Self {
            version: VERSION,
            key,
            kind,
            runs,
            pack: 1,
            at_once: 0,
            repeatable: false,
            minutes: None,
            visible_after_ms: 0,
            options: Vec::new(),
        }
    }
}

/// The paths of one batch.
#[derive(Clone, Debug)]
pub struct BatchDir {
    dir: PathBuf,
}

const PARTS: [&str; 10] =
    ["list", "job", "started", "machine", "result", "late", "stopped", "tmp", "log", "scratch"];

impl BatchDir {
    pub fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The batch that contains a list of cells, and the number of its submission.
    pub fn of_list(list: &Path) -> Option<(Self, usize)> {
        let submission = list.file_name()?.to_str()?.parse().ok()?;
        let dir = list.parent().filter(|dir| dir.ends_with("list"))?.parent()?;
        Some((Self::at(dir), submission))
    }

    /// Creates the directory and all parts of it, for this user only.
    pub fn create(&self) -> Result<(), Error> {
        let make = |path: &Path| {
            DirBuilder::new().mode(0o700).create(path).map_err(Error::io("make", path))
        };
        make(&self.dir)?;
        PARTS.iter().try_for_each(|part| make(&self.dir.join(part)))
    }

    pub fn manifest(&self) -> PathBuf {
        self.dir.join("batch.json")
    }

    pub fn script(&self) -> PathBuf {
        self.dir.join("script")
    }

    pub fn input(&self) -> PathBuf {
        self.dir.join("input")
    }

    pub fn requests(&self) -> PathBuf {
        self.dir.join("requests")
    }

    fn request_index(&self) -> PathBuf {
        self.dir.join("requests.index")
    }

    fn done(&self) -> PathBuf {
        self.dir.join("done")
    }

    pub fn log(&self, submission: usize, task: usize) -> PathBuf {
        self.dir.join(format!("log/{submission}.{task}"))
    }

    /// Messages of runners that ended before they knew their task.
    fn machine_log(&self, machine: &str) -> PathBuf {
        self.dir.join(format!("log/on.{machine}"))
    }

    pub fn list(&self, submission: usize) -> PathBuf {
        self.dir.join(format!("list/{submission}"))
    }

    pub fn job(&self, submission: usize) -> PathBuf {
        self.dir.join(format!("job/{submission}"))
    }

    pub fn started(&self, cell: usize, attempt: &str) -> PathBuf {
        self.dir.join(format!("started/{cell}.{attempt}"))
    }

    pub fn results(&self) -> PathBuf {
        self.dir.join("result")
    }

    pub fn result(&self, cell: usize) -> PathBuf {
        self.dir.join(format!("result/{cell}"))
    }

    pub fn late(&self, cell: usize, attempt: &str) -> PathBuf {
        self.dir.join(format!("late/{cell}.{attempt}"))
    }

    pub fn stopped(&self, cell: usize, attempt: &str) -> PathBuf {
        self.dir.join(format!("stopped/{cell}.{attempt}"))
    }

    pub fn temporary(&self, cell: usize, attempt: &str) -> PathBuf {
        self.dir.join(format!("tmp/{cell}.{attempt}"))
    }

    /// Contains a directory for each attempt.
    pub fn scratch_dirs(&self) -> PathBuf {
        self.dir.join("scratch")
    }

    fn cancel(&self) -> PathBuf {
        self.dir.join("cancel")
    }

    pub fn cancelled(&self) -> bool {
        self.cancel().exists()
    }

    /// Records that the submitter cancelled the batch, and because of which signal, if any.
    pub fn mark_cancelled(&self, signal: Option<i32>) -> Result<(), Error> {
        let text = signal.map_or(String::new(), |signal| signal.to_string());
        write(&self.cancel(), text.as_bytes())
    }

    /// Who cancelled it, if it was cancelled.
    pub fn cancelled_by(&self) -> Option<CancelledBy> {
        let text = fs::read_to_string(self.cancel());
        match text {
            Ok(text) => Some(CancelledBy::Submitter(text.trim().parse().ok())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // Its existence suffices.
            Err(_) => self.cancelled().then_some(CancelledBy::Submitter(None)),
        }
    }

    /// The start time of the first attempt at a cell, if any.
    pub fn first_start(&self, cell: usize) -> Result<Option<SystemTime>, Error> {
        let its = self.attempts("started")?.into_iter().filter(|(its, _)| *its == cell);
        Ok(its.filter_map(|(_, path)| fs::metadata(path).ok()?.modified().ok()).min())
    }

    /// Reads the manifest.
    pub fn read_manifest(&self) -> Result<BatchManifest, Error> {
        let path = self.manifest();
        let manifest: BatchManifest = read_json(&path)?;
        if manifest.version != VERSION {
            return Err(Error::Version { path, found: manifest.version, known: VERSION });
        }
        Ok(manifest)
    }

    /// Writes the requests of all cells, and the variables that they share once.
    pub fn write_requests(&self, files: &mut [RequestFile]) -> Result<(), Error> {
        let path = self.requests();
        let failed = |error| Error::io("write", &path)(error);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let mut to = BufWriter::with_capacity(256 * 1024, file.map_err(failed)?);
        let (mut index, mut offset) = (String::with_capacity(files.len() * INDEX_LINE), 0);
        let mut bases: Vec<(BaseVariables, FilePart)> = Vec::new();
        for file in files {
            // A linear search suffices: there is one base for each working directory.
            if let Some(base) = file.request.environment.base.take() {
                let known = bases.iter().rev().find(|(known, _)| *known == base);
                let part = match known {
                    Some((_, part)) => *part,
                    None => {
                        let text = to_json(&base, &path)?;
                        to.write_all(&text).map_err(failed)?;
                        let part = FilePart { offset, length: text.len() as u64 };
                        offset += part.length;
                        bases.push((base, part));
                        part
                    }
                };
                file.base_at = Some(part);
            }
            let text = to_json(file, &path)?;
            to.write_all(&text).map_err(failed)?;
            // Writing to a string cannot fail.
            _ = writeln!(index, "{offset:016x} {:08x}", text.len());
            offset += text.len() as u64;
        }
        to.flush().map_err(failed)?;
        write_new(&self.request_index(), index.as_bytes())
    }

    fn request_text(&self, requests: &File, cell: usize) -> Result<Vec<u8>, Error> {
        let path = self.request_index();
        let mut line = [0; INDEX_LINE];
        File::open(&path)
            .and_then(|index| index.read_exact_at(&mut line, (cell * INDEX_LINE) as u64))
            .map_err(Error::io("read", &path))?;
        let number = |part: &[u8]| {
            let text = std::str::from_utf8(part).ok()?;
            u64::from_str_radix(text, 16).ok()
        };
        let (Some(offset), Some(length)) = (number(&line[..16]), number(&line[17..25])) else {
            return Err(Error::damaged(&path, format!("request {cell}")));
        };
        self.request_part(requests, FilePart { offset, length })
    }

    fn request_part(&self, requests: &File, part: FilePart) -> Result<Vec<u8>, Error> {
        let path = self.requests();
        let size = requests.metadata().map_err(Error::io("look at", &path))?.len();
        if part.length > size {
            return Err(Error::damaged(&path, format!("{} bytes at {}", part.length, part.offset)));
        }
        let mut text = vec![0; usize::try_from(part.length).unwrap_or(usize::MAX)];
        requests.read_exact_at(&mut text, part.offset).map_err(Error::io("read", &path))?;
        Ok(text)
    }

    fn open_requests(&self) -> Result<File, Error> {
        let path = self.requests();
        File::open(&path).map_err(Error::io("read", &path))
    }

    pub fn read_request(&self, cell: usize) -> Result<RequestFile, Error> {
        let requests = self.open_requests()?;
        let path = self.requests();
        let mut file = RequestFile::read(&path, &self.request_text(&requests, cell)?)?;
        if let Some(part) = file.base_at {
            let base = serde_json::from_slice(&self.request_part(&requests, part)?);
            let base = base.map_err(|error| Error::damaged(&path, error))?;
            file.request.environment.base = Some(base);
        }
        Ok(file)
    }

    /// The intent of a cell, whatever the version of its request file.
    pub fn read_intent(&self, cell: usize) -> Result<Redacted<Intent>, Error> {
        #[derive(Deserialize)]
        struct WithIntent {
            intent: Redacted<Intent>,
        }
        let text = self.request_text(&self.open_requests()?, cell)?;
        let read = serde_json::from_slice::<WithIntent>(&text);
        Ok(read.map_err(|error| Error::damaged(&self.requests(), error))?.intent)
    }

    /// The cells of a submission, in the order of its tasks.
    pub fn read_list(&self, submission: usize) -> Result<Vec<usize>, Error> {
        let path = self.list(submission);
        let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        let cells = text.lines().map(str::parse).collect::<Result<_, _>>();
        cells.map_err(|error: ParseIntError| Error::damaged(&path, error))
    }

    /// Whether the result of a cell is recorded. For machines that run it: an unreadable entry
    /// counts as not recorded.
    pub fn is_done(&self, cell: usize) -> bool {
        let mut byte = [0];
        let read = File::open(self.done()).and_then(|file| file.read_at(&mut byte, cell as u64));
        read.is_ok_and(|count| count == 1) && byte[0] == 1
    }

    /// The bytes of all cells, as far as they are written.
    pub fn done_bytes(&self) -> Vec<u8> {
        fs::read(self.done()).unwrap_or_default()
    }

    /// Marks the results of cells as recorded.
    pub fn mark_done(&self, cells: &[usize]) -> Result<(), Error> {
        let path = self.done();
        let failed = |error| Error::io("write", &path)(error);
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(failed)?;
        cells.iter().try_for_each(|cell| file.write_all_at(&[1], *cell as u64)).map_err(failed)
    }

    /// Whether a cell has a result.
    pub fn has_result(&self, cell: usize) -> bool {
        self.is_done(cell) || self.result(cell).exists()
    }

    /// The last lines of a task's runner, in one line; `None` if it wrote nothing.
    ///
    /// A runner on `failed_on` that failed without a message of its own may have ended before it could write
    /// one, as with a C library that is too old.
    pub fn runner_log(
        &self,
        (submission, task): (usize, usize),
        failed_on: Option<&str>,
    ) -> Option<String> {
        let own = last_lines(&self.log(submission, task));
        own.or_else(|| last_lines(&self.machine_log(failed_on?)))
    }

    /// Marks that a cell began on this machine.
    ///
    /// The mark is a link: making a file takes ext4 longer the more files were removed within the last
    /// minutes, and marks are removed once the result is recorded. The first cell on a machine makes the file
    /// that the others link to.
    pub fn mark_started(&self, cell: usize, attempt: &str, machine: &str) -> Result<(), Error> {
        let mark = self.started(cell, attempt);
        let named = self.dir.join("machine").join(machine.replace('/', "_"));
        if fs::hard_link(&named, &mark).is_ok() {
            return Ok(());
        }
        write_new(&mark, machine.as_bytes())?;
        // Fails if another cell was the first, or the file has as many links as its file system allows.
        _ = fs::hard_link(&mark, &named);
        Ok(())
    }
    /// Free space for this user on the batch's file system, in bytes.
    pub fn free_bytes(&self) -> Result<u64, Error> {
        let failed = |error: rustix::io::Errno| Error::io("look at", &self.dir)(error.into());
        let system = rustix::fs::statvfs(&self.dir).map_err(failed)?;
        Ok(system.f_bavail.saturating_mul(system.f_frsize))
    }

    /// The names of results that are not recorded yet, or came after the recorded one.
    pub fn finished(&self) -> Result<Vec<usize>, Error> {
        let path = self.results();
        numbers(&path).map_err(Error::io("read", &path))
    }

    /// The submissions that were started, in order.
    pub fn begun_submissions(&self) -> Result<Vec<usize>, Error> {
        let path = self.dir.join("list");
        let mut submissions = numbers(&path).map_err(Error::io("read", &path))?;
        submissions.sort_unstable();
        Ok(submissions)
    }

    /// The attempts that left a file of a cell in one of the parts, with its path.
    pub fn attempts(&self, part: &str) -> Result<Vec<(usize, PathBuf)>, Error> {
        let path = self.dir.join(part);
        let failed = |error| Error::io("read", &path)(error);
        let mut found = Vec::new();
        for entry in fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let cell = name.to_str().and_then(|name| name.split('.').next()?.parse().ok());
            found.extend(cell.map(|cell| (cell, entry.path())));
        }
        Ok(found)
    }
}

/// The last lines of a runner's log.
fn last_lines(log: &Path) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let from = file.metadata().ok()?.len().saturating_sub(LOG_QUOTED);
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut bytes = Vec::new();
    file.take(LOG_QUOTED).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines();
    if from > 0 {
        // The first line may be incomplete.
        lines.next();
    }
    let lines: Vec<&str> = lines.map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
    (!last.is_empty()).then(|| last.join("; "))
}

/// The names in a directory that are numbers.
fn numbers(path: &Path) -> io::Result<Vec<usize>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        found.extend(entry?.file_name().to_str().and_then(|name| name.parse::<usize>().ok()));
    }
    Ok(found)
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let text = fs::read(path).map_err(Error::io("read", path))?;
    serde_json::from_slice(&text).map_err(|error| Error::damaged(path, error))
}

/// Writes a file; on return it is complete and durable.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let written = || -> io::Result<()> {
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let aside = PathBuf::from(name);
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&aside, path)?;
        sync(path.parent().unwrap_or(Path::new("/")))
    };
    written().map_err(Error::io("write", path))
}

/// Writes a new file that is not used before a later one says that it is complete.
pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(bytes))
        .map_err(Error::io("write", path))
}

/// Makes the names in a directory durable.
pub(crate) fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

pub(crate) fn to_json(value: &impl Serialize, path: &Path) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(|error| Error::damaged(path, error))
}

#[cfg(test)]
impl BatchDir {
    pub(crate) fn for_test() -> (tempfile::TempDir, Self) {
        let dir = tempfile::tempdir().unwrap();
        let batch_dir = Self::at(&dir.path().join("k"));
        batch_dir.create().unwrap();
        (dir, batch_dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_tells_its_batch_and_submission() {
        let (batch_dir, submission) = BatchDir::of_list(Path::new("/s/batches/k/list/17")).unwrap();
        assert_eq!((batch_dir.path(), submission), (Path::new("/s/batches/k"), 17));
        for wrong in ["/s/k/list/x", "/s/k/other/1", "list", "/s/k/list/1.new"] {
            assert!(BatchDir::of_list(Path::new(wrong)).is_none(), "{wrong}");
        }
    }

    #[test]
    fn done_cells_are_known_without_a_file_per_cell() {
        let (_dir, batch_dir) = BatchDir::for_test();
        assert!(!batch_dir.is_done(0));
        batch_dir.mark_done(&[7, 2]).unwrap();
        batch_dir.mark_done(&[9]).unwrap();
        let done: Vec<usize> = (0..12).filter(|cell| batch_dir.is_done(*cell)).collect();
        assert_eq!(done, [2, 7, 9]);
        fs::write(batch_dir.result(3), "x").unwrap();
        assert!(batch_dir.has_result(3) && batch_dir.has_result(7) && !batch_dir.has_result(4));
    }

    #[test]
    fn each_request_is_found_in_the_one_file_of_all() {
        let (_dir, batch_dir) = BatchDir::for_test();
        let mut files: Vec<RequestFile> = ["a", "bb", "\u{fc}"].map(RequestFile::for_test).into();
        let variable = |value: &str| vec![("NAME".into(), value.into())];
        let bases = [Some(variable("of all")), None, Some(variable("of all"))];
        for (file, base) in files.iter_mut().zip(&bases) {
            file.request.environment.base.clone_from(base);
        }
        batch_dir.write_requests(&mut files).unwrap();
        let text = fs::read_to_string(batch_dir.requests()).unwrap();
        assert_eq!(text.matches("of all").count(), 1, "{text}");
        for (cell, file) in files.iter_mut().enumerate().rev() {
            file.request.environment.base.clone_from(&bases[cell]);
            assert_eq!(&batch_dir.read_request(cell).unwrap(), file);
            assert_eq!(batch_dir.read_intent(cell).unwrap(), file.intent);
        }
        assert!(batch_dir.read_request(3).is_err());
        assert_eq!(fs::read_dir(batch_dir.path()).unwrap().count(), PARTS.len() + 2);
    }

    #[test]
    fn the_end_of_a_runners_log_is_quoted() {
        let (_dir, batch_dir) = BatchDir::for_test();
        assert_eq!(batch_dir.runner_log((0, 3), None), None);
        let log = batch_dir.path().join("log/0.3");
        fs::write(&log, "\n").unwrap();
        assert_eq!(batch_dir.runner_log((0, 3), None), None);
        fs::write(&log, "one\ntwo\n\nthree\nfour\n").unwrap();
        assert_eq!(batch_dir.runner_log((0, 3), None).unwrap(), "two; three; four");
        let long = format!("{}\nlast\n", "x".repeat(5000));
        fs::write(&log, long).unwrap();
        assert_eq!(batch_dir.runner_log((0, 3), None).unwrap(), "last");
        fs::write(batch_dir.path().join("log/on.n1"), "not found\n").unwrap();
        assert_eq!(batch_dir.runner_log((0, 3), Some("n1")).unwrap(), "last");
        assert_eq!(batch_dir.runner_log((0, 4), Some("n1")).unwrap(), "not found");
        assert_eq!(batch_dir.runner_log((0, 4), Some("n2")), None);
        assert_eq!(batch_dir.runner_log((0, 4), None), None);
    }

    #[test]
    fn marks_of_started_cells_share_a_file_and_name_their_machine() {
        let (_dir, batch_dir) = BatchDir::for_test();
        for (cell, machine) in [(0, "n.1"), (1, "n.1"), (2, "b/2"), (3, "n.1")] {
            batch_dir.mark_started(cell, "x", machine).unwrap();
        }
        use std::os::unix::fs::MetadataExt;
        let mut found: Vec<_> = batch_dir.attempts("started").unwrap();
        found.sort();
        let read = |(cell, path): &(usize, PathBuf)| (*cell, fs::read_to_string(path).unwrap());
        let expected = [(0, "n.1"), (1, "n.1"), (2, "b/2"), (3, "n.1")];
        let expected = expected.map(|(cell, machine)| (cell, machine.to_owned()));
        assert_eq!(found.iter().map(read).collect::<Vec<_>>(), expected);
        let links = |cell| fs::metadata(batch_dir.started(cell, "x")).unwrap().nlink();
        assert_eq!([links(0), links(2)], [4, 2]);
        // An attempt starts once.
        assert!(batch_dir.mark_started(0, "x", "n.1").is_err());
    }

    #[test]
    fn incomplete_files_are_not_results() {
        let (_dir, batch_dir) = BatchDir::for_test();
        fs::write(batch_dir.result(3), "x").unwrap();
        fs::write(batch_dir.results().join("4.new"), "x").unwrap();
        fs::write(batch_dir.temporary(5, "a"), "x").unwrap();
        assert_eq!(batch_dir.finished().unwrap(), [3]);
        write(&batch_dir.job(0), b"17").unwrap();
        assert_eq!(fs::read(batch_dir.job(0)).unwrap(), b"17");
    }
}
