//! The cost of recording a run: `cargo run --release -p retake-store --example recording_speed
//! DIRECTORY COUNT [FILE]`. Prints wall and CPU microseconds of one run without output, and of one
//! bare append with fdatasync in the same directory. Run it under `strace -c` or `valgrind
//! --tool=callgrind` to attribute the cost. With a file, also prints the CPU time of runs that
//! print the file until a gigabyte has passed, without and with redaction by shape.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a tool for developers")]

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use retake_store::redact::Redactor;
use retake_store::{Recording, Store};
use retake_types::request::{CommandRequest, LoopPosition, RunRequest};
use retake_types::{Intent, Outcome, Redacted, RedactedParts, RunOutcome, Stream};

const TOTAL: usize = 1 << 30;
const PIECE: usize = 256 << 10;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().unwrap());
    let count: usize = arguments.next().unwrap().parse().unwrap();
    std::fs::create_dir_all(&directory).unwrap();
    let mut store = Store::open(&directory.join("store")).unwrap();
    let mut file =
        OpenOptions::new().create(true).append(true).open(directory.join("log")).unwrap();
    // The store optimises for many runs only after the first few.
    (0..20).for_each(|_| record(&mut store));
    let mut times = [Vec::new(), Vec::new()];
    let before = cpu_us();
    for _ in 0..count {
        let start = Instant::now();
        record(&mut store);
        times[0].push(start.elapsed().as_micros());
    }
    let cpu = cpu_us() - before;
    for _ in 0..count {
        let start = Instant::now();
        file.write_all(&[7; 4096]).unwrap();
        file.sync_data().unwrap();
        times[1].push(start.elapsed().as_micros());
    }
    let [record, append] = times.map(|mut times| {
        times.sort_unstable();
        (times[count / 4], times[count / 2], times.iter().sum::<u128>() / count as u128)
    });
    println!("record: quartile, median, mean {record:?} µs, CPU {:.0} µs", cpu / count as f64);
    println!("append: quartile, median, mean {append:?} µs");
    let Some(file) = arguments.next() else { return };
    let bytes = std::fs::read(file).unwrap();
    let mut output = move |redactor: &Redactor| {
        let (mut recording, mut stream) = (begin(&mut store), redactor.stream());
        let before = cpu_us();
        for _ in 0..TOTAL.div_ceil(bytes.len()) {
            for piece in bytes.chunks(PIECE) {
                stream.push(piece, &mut |clean| recording.append(Stream::Stdout, clean));
            }
        }
        stream.finish(&mut |clean| recording.append(Stream::Stdout, clean));
        let cpu = cpu_us() - before;
        finish(&mut store, recording);
        let id = store.find("last").unwrap().intent.id();
        store.delete(id).unwrap();
        cpu / 1e6
    };
    for round in 0..5 {
        let [plain, shapes] = [Redactor::off(), Redactor::shapes()].map(|by| output(&by));
        println!("{round}: {plain:.3} s of CPU time, with shapes {shapes:.3}");
    }
}

fn record(store: &mut Store) {
    let recording = begin(store);
    finish(store, recording);
}

fn finish(store: &mut Store, recording: Recording) {
    let outcome = RunOutcome::bare(&Outcome::Exited(0), jiff::Timestamp::now());
    recording.finish(store, Redacted::new(outcome, &mut Redactor::off())).unwrap();
}

fn begin(store: &mut Store) -> Recording {
    let command = CommandRequest::arguments("bench", ["bench"]);
    let intent = Intent {
        reported_by: None,
        request: RunRequest::new(LoopPosition::exec(), command, "/"),
        redacted: RedactedParts::default(),
        parent_id: None,
        start_time: jiff::Timestamp::now(),
        host: "bench".into(),
        user: "bench".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        program: None,
        variables: None,
        inherited_secrets: Vec::new(),
    };
    store.begin(&Redacted::new(intent, &mut Redactor::off())).unwrap()
}

fn cpu_us() -> f64 {
    // SAFETY: zero is a valid rusage, filled by the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let micros = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    micros(usage.ru_utime) + micros(usage.ru_stime)
}
