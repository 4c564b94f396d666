//! The metrics of a configuration: their names, and where to find their numbers.

use retake_runner::metrics::{BUILT_IN, is_name};
use retake_runner::wanted_metrics::{check_pattern, is_pointer};
use retake_types::request::{MetricSource, WantedMetric};
use retake_types::{Better, Stream};

use super::nodes::{Node, Nodes};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricConfig {
    pub name: String,
    pub unit: Option<String>,
    pub better: Option<Better>,
    pub source: MetricSource,
}

impl MetricConfig {
    /// The metric to extract from a run; `None` for those that retake measures itself.
    pub fn wanted(&self) -> Option<WantedMetric> {
        let Self { name, unit, better, source } = self.clone();
        (!BUILT_IN.contains(&name.as_str())).then_some(WantedMetric { name, unit, better, source })
    }

    /// A number in the output of a command, found by a pattern; an error explains an invalid one.
    pub fn in_output(name: &str, pattern: &str) -> Result<Self, String> {
        check_name(name, true)?;
        check_pattern(pattern)?;
        let source = MetricSource::Output { stream: None, pattern: pattern.to_owned() };
        Ok(Self { name: name.to_owned(), unit: None, better: None, source })
    }

    /// The source as text, which distinguishes metrics with the same name; `None` for reported
    /// ones.
    pub fn source_text(&self) -> Option<String> {
        (self.source != MetricSource::Reported)
            .then(|| serde_json::to_string(&self.source).expect("plain data"))
    }
}

fn check_name(name: &str, has_source: bool) -> Result<(), String> {
    if !is_name(name) {
        return Err("takes names of letters, digits and . _ - / :".to_owned());
    }
    if has_source && BUILT_IN.contains(&name) {
        return Err(format!("{name} is measured by retake; choose another name"));
    }
    Ok(())
}

const KEYS: [&str; 7] = ["name", "unit", "better", "from", "pattern", "file", "pointer"];

pub(super) fn read<'t>(nodes: &mut Nodes<'t>, node: &Node<'t>) -> Vec<MetricConfig> {
    let mut metrics: Vec<MetricConfig> = Vec::new();
    for item in nodes.items(node, "metrics") {
        let Some(metric) = one(nodes, item) else { continue };
        let has_source = metric.source != MetricSource::Reported;
        if let Err(why) = check_name(&metric.name, has_source) {
            nodes.problem(item, "metrics", why);
        } else if metrics.iter().any(|known| known.name == metric.name) {
            nodes.warning(item, "metrics", format!("{} is listed twice", metric.name));
        } else {
            metrics.push(metric);
        }
    }
    metrics
}

/// One entry: a name or a group; `None` for an invalid one.
fn one<'t>(nodes: &mut Nodes<'t>, item: &Node<'t>) -> Option<MetricConfig> {
    let mut metric = MetricConfig {
        name: String::new(),
        unit: None,
        better: None,
        source: MetricSource::Reported,
    };
    if let Some(name) = nodes.scalar(item) {
        return Some(MetricConfig { name, ..metric });
    }
    let before = nodes.problems.len();
    let (mut stream, mut pattern, mut file, mut pointer) = (None, None, None, None);
    for (key, _, value) in nodes.entries(item, "metrics", Some(&KEYS)) {
        if key == "pointer" {
            // An empty pointer refers to the whole document.
            pointer = nodes.scalar(value);
            continue;
        }
        let text = nodes.text(value, "metrics");
        match (key.as_str(), text.as_deref()) {
            ("name", Some(text)) => metric.name = text.to_owned(),
            ("unit", _) => metric.unit = text,
            ("better", Some("lower")) => metric.better = Some(Better::Lower),
            ("better", Some("higher")) => metric.better = Some(Better::Higher),
            ("better", Some(other)) => {
                let what = format!("better takes lower or higher, not {other}");
                nodes.problem(value, "metrics", what);
            }
            ("from", Some("stdout")) => stream = Some(Stream::Stdout),
            ("from", Some("stderr")) => stream = Some(Stream::Stderr),
            ("from", Some(other)) => {
                nodes.problem(
                    value,
                    "metrics",
                    format!("from takes stdout or stderr, not {other}"),
                );
            }
            ("pattern", Some(text)) => match check_pattern(text) {
                Ok(()) => pattern = Some(text.to_owned()),
                Err(why) => nodes.problem(value, "metrics", format!("pattern: {why}")),
            },
            ("file", _) => file = text,
            _ => {}
        }
    }
    if nodes.problems.len() > before {
        return None;
    }
    metric.source = match source(stream, pattern, file, pointer) {
        Ok(source) => source,
        Err(why) => {
            nodes.problem(item, "metrics", why);
            return None;
        }
    };
    Some(metric)
}

fn source(
    stream: Option<Stream>,
    pattern: Option<String>,
    file: Option<String>,
    pointer: Option<String>,
) -> Result<MetricSource, &'static str> {
    match (stream, pattern, file, pointer) {
        (None, None, None, None) => Ok(MetricSource::Reported),
        (stream, Some(pattern), None, None) => Ok(MetricSource::Output { stream, pattern }),
        (None, Some(pattern), Some(path), None) => Ok(MetricSource::FilePattern { path, pattern }),
        (None, None, Some(path), Some(pointer)) if is_pointer(&pointer) => {
            Ok(MetricSource::FilePointer { path, pointer })
        }
        (None, None, Some(_), Some(_)) => {
            Err("pointer takes a place in a JSON document, such as /results/0/mean")
        }
        (_, _, None, Some(_)) => Err("pointer needs a file"),
        (_, None, Some(_), None) => Err("file needs a pattern or a pointer"),
        (Some(_), None, None, None) => Err("from needs a pattern"),
        (_, Some(_), _, Some(_)) => Err("takes a pattern or a pointer, not both"),
        (Some(_), _, Some(_), _) => Err("takes from or file, not both"),
    }
}
