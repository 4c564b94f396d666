//! Loops with more and more iterations, matrices with more and more cells.

use std::path::Path;

use super::{Expected, Growth, answer_ms, middle, steps, text};
use crate::bench::agent::{BenchProject, RESULT, bytes_below};
use crate::bench::exec::{program, scratch, timed};
use crate::bench::ui::Server;
use crate::page::Page;

pub(super) fn agents(page: &mut Page, largest: u64) -> Result<(), String> {
    page.section(
        "Iterations of an agent's loop",
        "An agent that only prints its result, in a project without files. Wall and CPU time are those of the whole \
         loop, including the agent, per iteration; the largest resident set is that of its largest process. Commands \
         that show the workspace afterwards are in milliseconds. Bytes on disk are those of the record, its log and \
         the cache for counting changed lines, which takes at most 1 MiB more than twice what is in use. A record \
         grows in large steps, so a few iterations do not fill the first one.",
    );
    let steps = steps(largest, 100);
    let mut growth = Growth::new(&steps);
    let retake = program("retake")?;
    for &iterations in &steps {
        eprint!("\ragents: {iterations} iterations");
        let project = BenchProject::new()?;
        let agent = project.agent("prints", &format!("cat >/dev/null; echo '{RESULT}'"))?;
        let options = format!("--no-delay -m {iterations}");
        let run = project.command(&retake, &agent, "loop", &options)?;
        let (wall, cpu, rss) = timed(&run)?;
        let each = |micros: f64| micros / 1000.0 / iterations as f64;
        growth.add("agent run, ms per iteration", Expected::Same, each(wall));
        growth.add("agent run, CPU ms per iteration", Expected::Same, each(cpu));
        growth.add("agent run, peak MiB", Expected::Same, rss / 1024.0);
        let disk = bytes_below(&project.project()).map_err(text)? / iterations as f64;
        growth.add("bytes on disk per iteration", Expected::Same, disk);
        let dir = project.project().display().to_string();
        let line = |words: &str| format!("cd {dir} && exec {} {words}", retake.display());
        for (name, words) in [
            ("agent list", "agent list".to_owned()),
            ("agent show --last 10", "agent show loop --last 10".to_owned()),
            ("agent show, the last iteration", format!("agent show loop {iterations}")),
            ("agent show, one in the middle", format!("agent show loop {}", iterations / 2)),
        ] {
            growth.add(name, Expected::Same, answer_ms(&line(&words), 11)?);
        }
        let all = answer_ms(&line("agent show loop --json"), 5)?;
        growth.add("agent show --json, all iterations", Expected::Tenfold, all);
        let store = project.project().join(".agent/data");
        ran(&store, iterations)?;
        loop_pages(&retake, &store, &mut growth)?;
    }
    eprintln!();
    growth.table(page);
    Ok(())
}

pub(super) fn matrices(page: &mut Page, largest: u64) -> Result<(), String> {
    page.section(
        "Cells of a matrix",
        "`command: 'true'`, one iteration of each cell, two axes of ten values and a third of the rest, one worker. \
         Queries of the results are in milliseconds and cover all of them.",
    );
    let steps = steps(largest, 1_000);
    let mut growth = Growth::new(&steps);
    let retake = program("retake")?;
    for &cells in &steps {
        eprint!("\rmatrices: {cells} cells");
        let project = scratch()?;
        std::fs::create_dir(project.join(".agent")).map_err(text)?;
        std::fs::write(project.join("matrix.yml"), configuration(cells)).map_err(text)?;
        let dir = project.display().to_string();
        // Otherwise the record would be that of the repository around the target directory.
        let line = |words: &str| {
            format!(
                "cd {dir} && export RETAKE_STORE={dir}/.agent/data && exec {} matrix {words}",
                retake.display()
            )
        };
        let run = ["sh", "-c", &line("run -q --workers 1")].map(str::to_owned);
        let (wall, cpu, rss) = timed(&run)?;
        let each = |micros: f64| micros / 1000.0 / cells as f64;
        growth.add("matrix run, ms per cell", Expected::Same, each(wall));
        growth.add("matrix run, CPU ms per cell", Expected::Same, each(cpu));
        growth.add("matrix run, peak KiB per cell", Expected::Same, rss / cells as f64);
        growth.add(
            "matrix run, nothing left to do",
            Expected::Tenfold,
            answer_ms(&line("run -q"), 5)?,
        );
        for words in ["status", "compare", "explain", "report -o report.html"] {
            let name = format!("matrix {}", words.split(' ').next().unwrap_or_default());
            growth.add(&name, Expected::Tenfold, answer_ms(&line(words), 5)?);
        }
        let store = project.join(".agent/data");
        ran(&store, cells)?;
        loop_pages(&retake, &store, &mut growth)?;
        std::fs::remove_dir_all(&project).map_err(text)?;
    }
    eprintln!();
    growth.table(page);
    Ok(())
}

fn configuration(cells: u64) -> String {
    let list = |count: u64| (0..count).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    format!(
        "command: 'true'\niterations: 1\nreset: never\naxes: {{a: [{}], b: [{}], c: [{}]}}\n",
        list(10),
        list(10),
        list(cells / 100)
    )
}

/// The list of loops, and the page of the only one.
fn loop_pages(retake: &Path, store: &Path, growth: &mut Growth) -> Result<(), String> {
    let server = Server::start(retake, store)?;
    let (_, answer) = server.get("/api/v1/loops")?;
    let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
    let document: serde_json::Value = serde_json::from_str(body).map_err(text)?;
    let id = document["loops"][0]["id"].as_str().ok_or("no loop in the record")?;
    let one = format!("/loops/{id}");
    let list = middle(11, || Ok(server.get("/loops")?.0))?;
    growth.add("ui: loops", Expected::Same, list);
    let page = middle(11, || Ok(server.get(&one)?.0))?;
    growth.add("ui: the page of the loop", Expected::Same, page);
    Ok(())
}

/// Fails unless this many runs are in the record.
fn ran(store: &Path, wanted: u64) -> Result<(), String> {
    let database = rusqlite::Connection::open(store.join("retake.db")).map_err(text)?;
    let there = database.query_row("SELECT count(*) FROM runs", [], |row| row.get::<_, i64>(0));
    match there.map_err(text)? as u64 {
        there if there >= wanted => Ok(()),
        there => Err(format!("{there} of {wanted} runs were recorded")),
    }
}
