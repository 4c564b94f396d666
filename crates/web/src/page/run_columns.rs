//! The columns of a list of runs. Outcome and command are always shown; the reader chooses the others,
//! and the choice is part of the address.

use std::time::Duration;

use jiff::Timestamp;
use retake_runner::html::Html;
use retake_runner::run_text;
use retake_store::LoopRuns;
use retake_types::{Effects, Run, State, text};

use super::run_table::{bar, elapsed};
use crate::error::RequestError;
use crate::params::{Params, address_of};

/// The parameter of a choice in an address.
const PARAMETER: &str = "col";
/// More columns than these do not fit.
const MOST_FITTING: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Started,
    Took,
    Kind,
    Host,
    Directory,
    Labels,
    Commit,
    Tests,
    Cpu,
    Memory,
    Output,
    Id,
}

impl Column {
    const ALL: [Self; 12] = [
        Self::Started,
        Self::Took,
        Self::Kind,
        Self::Host,
        Self::Directory,
        Self::Labels,
        Self::Commit,
        Self::Tests,
        Self::Cpu,
        Self::Memory,
        Self::Output,
        Self::Id,
    ];
    const USUAL: [Self; 4] = [Self::Started, Self::Took, Self::Kind, Self::Id];

    /// Its name in addresses, its title, and its class.
    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Started => ("started", "Started", "when"),
            Self::Took => ("took", "Took", "took"),
            Self::Kind => ("kind", "Kind", "kind"),
            Self::Host => ("host", "Host", "host"),
            Self::Directory => ("directory", "Directory", "directory"),
            Self::Labels => ("labels", "Labels", "labels"),
            Self::Commit => ("commit", "Commit", "commit"),
            Self::Tests => ("tests", "Tests passed", "tests-of n"),
            Self::Cpu => ("cpu", "CPU time", "cpu n"),
            Self::Memory => ("memory", "Memory", "memory n"),
            Self::Output => ("output", "Output", "bytes n"),
            Self::Id => ("id", "Id", "id"),
        }
    }
}

/// The columns of a list, in order.
#[derive(Clone, Debug)]
pub(super) struct RunColumns(Vec<Column>);

impl Default for RunColumns {
    fn default() -> Self {
        Self(Column::USUAL.into())
    }
}

impl RunColumns {
    pub(super) fn from_params(params: &Params) -> Result<Self, RequestError> {
        let chosen: Vec<&str> = params.all(PARAMETER).collect();
        for name in &chosen {
            if !Column::ALL.iter().any(|column| column.names().0 == *name) {
                let known = Column::ALL.map(|column| column.names().0).join(", ");
                return Err(RequestError::bad_request(format!(
                    "{PARAMETER}={name} is not one of {known}"
                )));
            }
        }
        if chosen.is_empty() {
            return Ok(Self::default());
        }
        let has = |column: &Column| chosen.contains(&column.names().0);
        Ok(Self(Column::ALL.into_iter().filter(has).collect()))
    }

    /// The table up to its rows. With the parameters of its page, the headings sort it.
    pub(super) fn begin_table(&self, html: &mut Html, sorted: Option<&Params>) {
        html.markup("<div class=\"scroll\"><table class=\"runs");
        html.markup(if self.0.len() > MOST_FITTING { " many" } else { "" });
        html.markup("\"><thead><tr><th scope=\"col\" class=\"how\">Outcome</th><th scope=\"col\" class=\"what\">Command</th>");
        for column in &self.0 {
            let (_, name, class) = column.names();
            let sorts = match column {
                Column::Started => Some(("", "oldest", "descending", "ascending")),
                Column::Took => Some(("slowest", "fastest", "descending", "ascending")),
                _ => None,
            };
            html.markup("<th scope=\"col\"").attr("class", class);
            let Some((params, (down, up, falling, rising))) = sorted.zip(sorts) else {
                html.markup(">").markup(name).markup("</th>");
                continue;
            };
            let sort = params.get("sort").unwrap_or_default();
            let (aria, mark, other) = match sort {
                _ if sort == down => (Some(falling), " ↓", up),
                _ if sort == up => (Some(rising), " ↑", down),
                _ => (None, "", down),
            };
            if let Some(aria) = aria {
                html.attr("aria-sort", aria);
            }
            html.markup("><a");
            html.attr("href", params.with("/runs", &[("sort", other), ("cursor", "")]));
            html.markup(">").markup(name).markup("<span aria-hidden=\"true\">").markup(mark);
            html.markup("</span></a></th>");
        }
        html.markup("</tr></thead><tbody data-rows");
        html.markup(if sorted.is_some() { " id=\"rows\">" } else { ">" });
    }

    pub(super) fn end_table(html: &mut Html) {
        html.markup("</tbody></table></div>");
    }

    /// The cells of a run after its outcome and command.
    pub(super) fn cells(
        &self,
        html: &mut Html,
        run: &Run,
        (longest, now): (Option<u64>, Timestamp),
        mut id: impl FnMut(&mut Html),
    ) {
        for column in &self.0 {
            open(html, *column);
            match column {
                Column::Started => _ = html.time(run.intent.start_time, now),
                Column::Took => took(html, run, (longest, now)),
                Column::Id => id(html),
                other => fact(html, *other, run),
            }
            html.markup("</td>");
        }
    }

    /// The cells of a loop. Values that differ between its runs are left out.
    pub(super) fn loop_cells(&self, html: &mut Html, runs: &LoopRuns, now: Timestamp) {
        let newest = &runs.newest;
        for column in &self.0 {
            open(html, *column);
            match column {
                Column::Started => _ = html.time(newest.intent.start_time, now),
                Column::Kind | Column::Host | Column::Directory => fact(html, *column, newest),
                Column::Id => _ = html.element("code", "", runs.id.short()),
                _ => {}
            }
            html.markup("</td>");
        }
    }

    /// A form that chooses columns and keeps all other parameters.
    pub(super) fn form(&self, html: &mut Html, params: &Params) {
        html.markup("<details class=\"columns\" id=\"columns\"><summary>Columns</summary><form action=\"/runs\">");
        let kept = params.pairs().filter(|(name, _)| !matches!(*name, PARAMETER | "cursor"));
        let kept: Vec<(&str, &str)> = kept.collect();
        for (name, value) in &kept {
            html.markup("<input type=\"hidden\"").attr("name", name).attr("value", value);
            html.markup(">");
        }
        for column in Column::ALL {
            let (word, name, _) = column.names();
            html.markup("<label><input type=\"checkbox\"").attr("name", PARAMETER);
            html.attr("value", word);
            html.markup(if self.0.contains(&column) { " checked> " } else { "> " });
            html.markup(name).markup("</label>");
        }
        html.markup("<button class=\"small\">Apply</button> ");
        if params.get(PARAMETER).is_some() {
            html.link(&address_of("/runs", &kept), "Default columns");
        }
        html.markup("</form></details>");
    }
}

/// The beginning of a cell, with its name for screens that do not show the head.
fn open(html: &mut Html, column: Column) {
    let (_, name, class) = column.names();
    html.markup("<td").attr("class", class);
    if !Column::USUAL.contains(&column) {
        html.attr("data-name", name);
    }
    html.markup(">");
}

fn took(html: &mut Html, run: &Run, (longest, now): (Option<u64>, Timestamp)) {
    match run.state {
        State::Running => elapsed(html, run.intent.start_time, now),
        _ => _ = html.text(run_text::duration(run)),
    }
    if let (Some(outcome), Some(longest)) = (&run.outcome, longest) {
        bar(html, outcome.duration_ms, longest);
    }
}

/// A link to all runs with the same value.
fn alike(html: &mut Html, name: &str, value: &str, shown: &str) {
    html.markup("<a").attr("href", address_of("/runs", &[(name, value)])).attr("title", value);
    html.markup(">").text(shown).markup("</a>");
}

fn fact(html: &mut Html, column: Column, run: &Run) {
    let intent = &run.intent;
    let outcome = run.outcome.as_ref();
    match column {
        Column::Kind => _ = html.markup(intent.kind().as_str()),
        Column::Host => {
            let placed = outcome.and_then(|outcome| outcome.ran_on.as_ref()?.node.as_deref());
            let host = placed.unwrap_or(&intent.host);
            alike(html, "host", host, host);
        }
        Column::Directory => {
            let directory = intent.working_directory();
            alike(html, "cwd", &directory, &directory);
        }
        Column::Labels => {
            for (key, value) in &intent.request.labels {
                let label = format!("{key}={value}");
                alike(html, "label", &label, &label);
                html.markup(" ");
            }
        }
        Column::Commit => {
            if let Some(commit) = intent.request.correlation_ids.repo_sha.as_deref() {
                let end = commit.char_indices().nth(10).map_or(commit.len(), |(at, _)| at);
                html.markup("<code").attr("title", commit).markup(">").text(&commit[..end]);
                html.markup("</code>");
            }
        }
        Column::Tests => {
            let effects = outcome.and_then(|outcome| outcome.effects.as_ref());
            let observed = effects.and_then(Effects::observations);
            if let Some(tests) = observed.and_then(|observed| observed.test_results.as_ref()) {
                let class = if tests.failed > 0 { "bad" } else { "" };
                html.element("span", class, format!("{} of {}", tests.passed, tests.total));
            }
        }
        Column::Cpu => {
            let used = outcome.map(|one| one.usage.user_cpu_ms() + one.usage.system_cpu_ms());
            html.text(used.map(|ms| text::duration(Duration::from_millis(ms))).unwrap_or_default());
        }
        Column::Memory => {
            let used = outcome.map(|outcome| text::size(outcome.usage.max_rss_kb << 10));
            html.text(used.unwrap_or_default());
        }
        Column::Output => {
            let bytes = outcome.map(|one| one.stdout_bytes + one.stderr_bytes);
            html.text(bytes.map(text::size).unwrap_or_default());
        }
        Column::Started | Column::Took | Column::Id => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(pairs: &[(&str, &str)]) -> Params {
        let owned = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Params::from(owned.collect::<Vec<_>>())
    }

    #[test]
    fn columns_are_those_of_the_address_in_their_own_order() {
        let chosen = RunColumns::from_params(&params(&[("col", "id"), ("col", "host")])).unwrap();
        assert_eq!(chosen.0, [Column::Host, Column::Id]);
        assert_eq!(RunColumns::from_params(&params(&[])).unwrap().0, Column::USUAL);
        let error = RunColumns::from_params(&params(&[("col", "colour")])).unwrap_err();
        assert!(
            error.message.contains("col=colour is not one of started, took"),
            "{}",
            error.message
        );
    }

    #[test]
    fn a_heading_says_how_the_list_is_sorted_and_turns_it() {
        let head = |pairs: &[(&str, &str)]| {
            let mut html = Html::new();
            RunColumns::default().begin_table(&mut html, Some(&params(pairs)));
            html.into_string()
        };
        let usual = head(&[("kind", "exec"), ("cursor", "1.2")]);
        assert!(usual.contains(
            "aria-sort=\"descending\"><a href=\"/runs?kind=exec&amp;sort=oldest\">Started"
        ));
        assert!(usual.contains("<a href=\"/runs?kind=exec&amp;sort=slowest\">Took"));
        let slowest = head(&[("sort", "slowest")]);
        assert!(slowest.contains("aria-sort=\"descending\"><a href=\"/runs?sort=fastest\">Took"));
        assert!(slowest.contains("<a href=\"/runs\">Started"), "{slowest}");
    }
}
