//! A simulated Slurm: its programs, and nodes that run nothing and leave results.
//!
//! Shows the behaviour and cost of a submitter with many more nodes and cells than a machine can run. The
//! programs are scripts that exchange files with a thread of this process.

use std::collections::{BTreeMap, BinaryHeap, HashSet, VecDeque};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Tasks that end or start before new submissions are accepted: a submitter gives up on one that the
/// controller does not know after ten seconds.
const AT_ONCE: usize = 50;

/// The limits of a site, and the duration of its tasks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimulatedSite {
    pub(crate) nodes: usize,
    pub(crate) max_array_size: usize,
    pub(crate) max_job_count: usize,
    pub(crate) task_time: Duration,
    /// The first task ends after this many others have ended.
    pub(crate) first_ends_after: usize,
}

/// Observations of a submitter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SimulatedStats {
    pub(crate) submissions: usize,
    pub(crate) largest_array: usize,
    pub(crate) tasks: usize,
    /// Maximum number of tasks that were queued or running at once.
    pub(crate) most_tasks: usize,
    /// How often `squeue` was called.
    pub(crate) questions: usize,
}

pub(crate) struct SimulatedSlurm {
    dir: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<SimulatedStats>>>,
}

impl SimulatedSlurm {
    pub(crate) fn start(dir: &Path, site: SimulatedSite) -> io::Result<Self> {
        for part in ["bin", "inbox", "queue"] {
            fs::create_dir_all(dir.join(part))?;
        }
        let at = dir.display();
        let programs = [
            (
                "sbatch",
                format!(
                    "for a; do case $a in --job-name=*) name=${{a#*=}};; --array=*) array=${{a#*=}};; \
                     esac; last=$a; done\nid=$(date +%s%N)\n\
                     echo \"$id $name $array $last\" > {at}/inbox/$id.new\n\
                     mv {at}/inbox/$id.new {at}/inbox/$id\necho $id"
                ),
            ),
            (
                "squeue",
                format!(
                    "for a; do case $a in --name=*) names=${{a#*=}};; esac; done\necho >> {at}/asked\n\
                     IFS=,\nfor name in $names; do cat {at}/queue/$name 2>/dev/null; done; exit 0"
                ),
            ),
            (
                "scontrol",
                format!(
                    "echo 'MaxArraySize = {}'\necho 'MaxJobCount = {}'",
                    site.max_array_size + 1,
                    site.max_job_count
                ),
            ),
            ("scancel", "exit 0".to_owned()),
        ];
        for (name, script) in programs {
            let path = dir.join("bin").join(name);
            fs::write(&path, format!("#!/bin/sh\n{script}\n"))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let controller = Controller::new(dir, site);
        let asked = stop.clone();
        let thread = std::thread::spawn(move || controller.run(&asked));
        Ok(Self { dir: dir.to_owned(), stop, thread: Some(thread) })
    }

    /// The directory of its programs.
    pub(crate) fn programs(&self) -> PathBuf {
        self.dir.join("bin")
    }

    /// Stops it, and returns its observations.
    pub(crate) fn finish(mut self) -> io::Result<SimulatedStats> {
        self.stop.store(true, Ordering::SeqCst);
        let ended = self.thread.take().and_then(|thread| thread.join().ok());
        let mut stats = ended.unwrap_or_else(|| Err(io::Error::other("the simulation failed")))?;
        let asked = fs::read(self.dir.join("asked")).unwrap_or_default();
        stats.questions = asked.len();
        Ok(stats)
    }
}

impl Drop for SimulatedSlurm {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

struct Job {
    id: String,
    name: String,
    batch: PathBuf,
    cells: Vec<Vec<usize>>,
    states: Vec<&'static str>,
    running: usize,
    /// `%N` of the array; 0 for none.
    cap: usize,
    changed: bool,
}

struct Controller {
    dir: PathBuf,
    site: SimulatedSite,
    jobs: Vec<Job>,
    waiting: VecDeque<(usize, usize)>,
    /// Sorted by end time, the earliest first.
    running: BinaryHeap<(std::cmp::Reverse<Instant>, usize, usize, usize)>,
    free: Vec<usize>,
    stats: SimulatedStats,
    ended: usize,
    seen: HashSet<String>,
    published: BTreeMap<usize, Instant>,
}

impl Controller {
    fn new(dir: &Path, site: SimulatedSite) -> Self {
        Self {
            dir: dir.to_owned(),
            site,
            jobs: Vec::new(),
            waiting: VecDeque::new(),
            running: BinaryHeap::new(),
            free: (0..site.nodes).collect(),
            stats: SimulatedStats::default(),
            ended: 0,
            seen: HashSet::new(),
            published: BTreeMap::new(),
        }
    }

    fn run(mut self, stop: &AtomicBool) -> io::Result<SimulatedStats> {
        while !stop.load(Ordering::SeqCst) {
            self.accept()?;
            let changed = self.end_tasks()? + self.start_tasks()?;
            self.publish()?;
            if changed < AT_ONCE {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(self.stats)
    }

    /// Accepts submissions.
    fn accept(&mut self) -> io::Result<()> {
        let mut new: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(self.dir.join("inbox"))? {
            let path = entry?.path();
            if path.extension().is_none() {
                new.push(path);
            }
        }
        new.sort();
        for path in new {
            let text = fs::read_to_string(&path)?;
            fs::remove_file(&path)?;
            let mut words = text.split_whitespace();
            let mut next = || words.next().unwrap_or_default().to_owned();
            let (id, name, array, script) = (next(), next(), next(), next());
            if !self.seen.insert(name.clone()) {
                return Err(io::Error::other(format!("{name} was submitted twice")));
            }
            let (range, cap) = array.split_once('%').unwrap_or((&array, "0"));
            let last: usize = range.trim_start_matches("0-").parse().map_err(io::Error::other)?;
            let batch = Path::new(&script).parent().unwrap_or(Path::new("/")).to_owned();
            let submission = name.rsplit('-').next().unwrap_or_default();
            let list = fs::read_to_string(batch.join("list").join(submission))?;
            let cells: Vec<usize> = list.lines().filter_map(|line| line.parse().ok()).collect();
            let pack = cells.len().div_ceil(last + 1).max(1);
            let cells: Vec<Vec<usize>> = cells.chunks(pack).map(<[usize]>::to_vec).collect();
            let tasks = cells.len();
            self.waiting.extend((0..tasks).map(|task| (self.jobs.len(), task)));
            self.stats.submissions += 1;
            self.stats.tasks += tasks;
            self.stats.largest_array = self.stats.largest_array.max(tasks);
            self.jobs.push(Job {
                id,
                name,
                batch,
                states: vec!["PENDING"; tasks],
                cells,
                running: 0,
                cap: cap.parse().unwrap_or(0),
                changed: true,
            });
        }
        let under_way = self.waiting.len() + self.running.len();
        self.stats.most_tasks = self.stats.most_tasks.max(under_way);
        Ok(())
    }

    /// Starts waiting tasks, and returns their number.
    fn start_tasks(&mut self) -> io::Result<usize> {
        let mut started = 0;
        for _ in 0..self.waiting.len() {
            if self.free.is_empty() || started == AT_ONCE {
                break;
            }
            let Some((job, task)) = self.waiting.pop_front() else { break };
            let known = &mut self.jobs[job];
            if known.cap > 0 && known.running >= known.cap {
                self.waiting.push_back((job, task));
                continue;
            }
            started += 1;
            let node = self.free.pop().unwrap_or_default();
            known.running += 1;
            known.states[task] = "RUNNING";
            known.changed = true;
            for cell in &known.cells[task] {
                let path = known.batch.join(format!("started/{cell}.{}_{task}", known.id));
                fs::write(path, format!("n{node}"))?;
            }
            let end = Instant::now() + self.site.task_time;
            self.running.push((std::cmp::Reverse(end), job, task, node));
        }
        Ok(started)
    }

    /// Ends tasks whose time is over, and returns their number.
    fn end_tasks(&mut self) -> io::Result<usize> {
        let mut ended = 0;
        while let Some((std::cmp::Reverse(end), job, task, node)) = self.running.peek().copied() {
            if end > Instant::now() || ended == AT_ONCE {
                break;
            }
            ended += 1;
            self.running.pop();
            if (job, task) == (0, 0) && self.ended < self.site.first_ends_after {
                let later = std::cmp::Reverse(Instant::now() + self.site.task_time);
                self.running.push((later, job, task, node));
                continue;
            }
            self.free.push(node);
            self.ended += 1;
            let known = &mut self.jobs[job];
            known.running -= 1;
            known.states[task] = "COMPLETED";
            known.changed = true;
            known.leave_results(task, node)?;
        }
        Ok(ended)
    }

    /// Updates the answers of `squeue`: each job at most once a second, like a real controller.
    fn publish(&mut self) -> io::Result<()> {
        for (at, job) in self.jobs.iter_mut().enumerate().filter(|(_, job)| job.changed) {
            if self.published.get(&at).is_some_and(|last| last.elapsed() < Duration::from_secs(1)) {
                continue;
            }
            self.published.insert(at, Instant::now());
            job.changed = false;
            let mut text = String::new();
            for (task, state) in job.states.iter().enumerate() {
                // Writing to a string cannot fail.
                _ = writeln!(
                    text,
                    "{:24}{task:<24}{state:24}{:64}{:128}{:16}{:96}",
                    job.id, "None", "", "0", job.name
                );
            }
            let path = self.dir.join("queue").join(&job.name);
            let aside = self.dir.join("queue.new");
            fs::write(&aside, text)?;
            fs::rename(&aside, &path)?;
        }
        Ok(())
    }
}

impl Job {
    /// Leaves the results of a task like a node.
    fn leave_results(&self, task: usize, node: usize) -> io::Result<()> {
        let cells = &self.cells[task];
        let mut text = String::new();
        for cell in cells {
            let request = self.request(*cell)?;
            let intent = object(&request, "\"intent\":").unwrap_or_default();
            let time = intent.split("\"startTime\":\"").nth(1);
            let time = time.and_then(|rest| rest.split('"').next()).unwrap_or_default();
            let ran_on = format!(
                "{{\"executor\":\"slurm\",\"node\":\"n{node}\",\"job\":\"{}_{task}\",\
                 \"attempt\":\"{}_{task}-0-n{node}-1\"}}",
                self.id, self.id
            );
            _ = writeln!(
                text,
                "{{\"run\":{{\"intent\":{intent},\"ending\":{{\"outcome\":\"exited\",\"exitCode\":0,\
                 \"signal\":null,\"endTime\":\"{time}\",\"durationMs\":7,\"stdoutBytes\":0,\
                 \"stderrBytes\":0,\"stdoutRawBytes\":0,\"stderrRawBytes\":0,\"stdoutBlake3\":null,\
                 \"stderrBlake3\":null,\"truncated\":false,\"leaked\":false,\"leftProcesses\":[],\
                 \"error\":null,\"usage\":{{\"userCpuMs\":2,\"systemCpuMs\":0,\"userCpuUs\":1176,\
                 \"systemCpuUs\":0,\"maxRssKb\":2836,\"minorFaults\":51,\"majorFaults\":0,\
                 \"blocksIn\":0,\"blocksOut\":0,\"voluntarySwitches\":1,\
                 \"involuntarySwitches\":2}},\"redactions\":0,\"ranOn\":{ran_on}}},\
                 \"chunks\":\"\"}}}}"
            );
        }
        let aside = self.batch.join(format!("tmp/{}.{task}", cells[0]));
        fs::write(&aside, text)?;
        fs::hard_link(&aside, self.batch.join(format!("result/{}", cells[0])))?;
        fs::remove_file(&aside)
    }

    fn request(&self, cell: usize) -> io::Result<String> {
        const LINE: usize = 26;
        let mut line = [0; LINE];
        let index = fs::File::open(self.batch.join("requests.index"))?;
        index.read_exact_at(&mut line, (cell * LINE) as u64)?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let (offset, length) = line.trim().split_once(' ').unwrap_or_default();
        let number = |text: &str| u64::from_str_radix(text, 16).map_err(io::Error::other);
        let mut text = vec![0; usize::try_from(number(length)?).unwrap_or_default()];
        fs::File::open(self.batch.join("requests"))?.read_exact_at(&mut text, number(offset)?)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// The object after this key in a JSON text.
fn object<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let from = text.find(key)? + key.len();
    let (mut depth, mut quoted, mut escaped) = (0, false, false);
    for (at, byte) in text[from..].bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' if !quoted => depth += 1,
            b'}' if !quoted => {
                depth -= 1;
                if depth == 0 {
                    return Some(&text[from..=from + at]);
                }
            }
            _ => {}
        }
    }
    None
}
