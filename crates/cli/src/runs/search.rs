//! `retake runs search`: finds runs by their output.

use std::time::Duration;

use jiff::Timestamp;
use retake_runner::run_text;
use retake_store::{SearchEffort, SearchHit, SearchResults};
use retake_types::{Run, RunId, Stream};
use serde::Serialize;

use crate::record::Record;
use crate::term::{Palette, Shade, visible};
use crate::{Exit, Failure, record, term};

/// How long output that is not indexed yet, and the middle of large output, is read.
const SCAN: Duration = Duration::from_secs(10);

/// Search the output of all runs
///
/// Matches whole words, in the given order, ignoring case; a * at the end matches any ending of the
/// last word. Searches all output: output that is not indexed yet is read for up to 10 seconds, or
/// without limit with --all.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The words to find
    #[arg(value_name = "TEXT", required = true)]
    text: Vec<String>,
    /// Maximum number of hits
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20, value_parser = term::number)]
    limit: usize,
    /// Read all output that is not indexed, however long it takes
    #[arg(long)]
    all: bool,
    /// Print the hits as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    hits: Vec<HitDocument<'a>>,
    more: bool,
    skipped_bytes: u64,
    /// Outputs that are damaged, of which nothing is shown.
    damaged: Vec<DamagedDocument>,
}

#[derive(Serialize)]
struct DamagedDocument {
    run: RunId,
    stream: Stream,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HitDocument<'a> {
    run: &'a Run,
    stream: Stream,
    snippet: &'a str,
    /// Ranges of the matches in the snippet, in bytes.
    matches: Vec<[usize; 2]>,
}

impl<'a> Document<'a> {
    fn of(found: &'a SearchResults) -> Self {
        let hits = found.hits.iter().map(|hit| HitDocument {
            run: &hit.run,
            stream: hit.stream,
            snippet: &hit.snippet,
            matches: hit.matches.iter().map(|range| [range.start, range.end]).collect(),
        });
        let damaged = found.damaged.iter().map(|&(run, stream)| DamagedDocument { run, stream });
        Self {
            hits: hits.collect(),
            more: found.more,
            skipped_bytes: found.skipped_bytes,
            damaged: damaged.collect(),
        }
    }
}

pub(super) fn search(args: &Args, record: &Record) -> Result<Exit, Failure> {
    let text = args.text.join(" ");
    if !text.contains(char::is_alphanumeric) {
        return Err(Failure::Usage(
            "the text contains no letter or digit to search for; to find other characters use \
             `retake runs logs ID | grep -F TEXT`"
                .to_owned(),
        ));
    }
    let store = record.read_marked_if_any()?;
    let found = match &store {
        Some(store) => {
            let limited = SearchEffort::within(SCAN);
            let effort = if args.all { SearchEffort::UNLIMITED } else { limited };
            store.search(&text, args.limit, effort)?
        }
        None => SearchResults::default(),
    };
    if args.json {
        term::document(&Document::of(&found))?;
    } else {
        let palette = Palette::of_stdout();
        let now = Timestamp::now();
        let hits: String = found.hits.iter().map(|hit| entry(hit, now, palette)).collect();
        term::page(&hits)?;
        if found.hits.is_empty() && args.limit > 0 {
            record.say_empty(&format!("no recorded output has `{text}`"), store.as_ref());
        }
        if found.more {
            term::say(&format!("there are older hits; --limit shows more than {}", args.limit));
        }
        if found.skipped_bytes > 0 {
            term::say(&format!(
                "stopped after {}: {} of older output were not searched; --all searches all output",
                term::duration(SCAN),
                term::size(found.skipped_bytes)
            ));
        }
    }
    for (id, stream) in &found.damaged {
        term::say(&format!(
            "the {} of run {id} is lost or was altered, and is omitted; `retake audit verify` finds everything that is damaged",
            stream.as_str()
        ));
    }
    if let Some(store) = store {
        record::tend(store);
    }
    Ok(if found.damaged.is_empty() { Exit::OK } else { Exit::FAILED })
}

fn entry(hit: &SearchHit, now: Timestamp, palette: Palette) -> String {
    let (outcome, shade) = run_text::outcome(&hit.run);
    format!(
        "{}  {}  {}  {}\n    {}: {}\n",
        hit.run.intent.id().short(),
        term::ago(hit.run.intent.start_time, now),
        palette.paint(shade, &outcome),
        visible(hit.run.intent.command()),
        hit.stream.as_str(),
        marked(hit, palette)
    )
}

/// The snippet with »marks« around the matches, so that colour is not their only mark.
fn marked(hit: &SearchHit, palette: Palette) -> String {
    let mut text = String::new();
    let mut at = 0;
    for range in &hit.matches {
        let (Some(before), Some(found)) =
            (hit.snippet.get(at..range.start), hit.snippet.get(range.clone()))
        else {
            continue;
        };
        text.push_str(&visible(before));
        text.push_str(&palette.paint(Shade::Match, &format!("»{}«", visible(found))));
        at = range.end;
    }
    text.push_str(&visible(hit.snippet.get(at..).unwrap_or_default()));
    text
}
