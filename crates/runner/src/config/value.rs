//! One value of the configuration: read from text or YAML, checked against its key.

use std::collections::BTreeMap;

use retake_types::config::{Key, KeyKind};
use retake_types::parse_duration;
use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Number(u64),
    Truth(bool),
    Word(&'static str),
    Words(Vec<String>),
    /// A text; also an amount or a duration as written.
    Text(String),
    Pairs(BTreeMap<String, String>),
    Unset,
}

impl Value {
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Number(number) => (*number).into(),
            Self::Truth(truth) => (*truth).into(),
            Self::Word(word) => (*word).into(),
            Self::Words(words) => words.clone().into(),
            Self::Text(text) => text.as_str().into(),
            Self::Pairs(pairs) => {
                pairs.iter().map(|(k, v)| (k.clone(), serde_json::Value::from(v.clone()))).collect()
            }
            Self::Unset => serde_json::Value::Null,
        }
    }
}

pub(super) fn default(key: &Key) -> Value {
    match key.kind {
        KeyKind::Words => {}
        KeyKind::Pairs => return Value::Pairs(BTreeMap::new()),
        _ if key.default.is_empty() => return Value::Unset,
        _ => {}
    }
    from_text(key.kind, key.default).expect("defaults are valid")
}

pub(super) fn from_text(kind: KeyKind, text: &str) -> Result<Value, String> {
    let text = text.trim();
    match kind {
        KeyKind::Number { min, max } => {
            let number = text.parse::<u64>().map_err(|_| expected(kind, text))?;
            if (min..=max).contains(&number) {
                Ok(Value::Number(number))
            } else {
                Err(expected(kind, text))
            }
        }
        KeyKind::Truth => text.parse().map(Value::Truth).map_err(|_| expected(kind, text)),
        KeyKind::Word(words) => words
            .iter()
            .find(|word| **word == text)
            .map(|word| Value::Word(word))
            .ok_or_else(|| expected(kind, text)),
        KeyKind::Words if text.starts_with('[') => match MarkedYaml::load_from_str(text).as_deref()
        {
            Ok([list]) => from_node(kind, false, list),
            _ => Err(expected(kind, text)),
        },
        KeyKind::Words => Ok(Value::Words(
            text.split(',').map(str::trim).filter(|w| !w.is_empty()).map(str::to_owned).collect(),
        )),
        KeyKind::Text => Ok(Value::Text(text.to_owned())),
        KeyKind::Money => match text.parse::<f64>() {
            Ok(amount) if amount.is_finite() && amount > 0.0 => Ok(Value::Text(text.to_owned())),
            _ => Err(expected(kind, text)),
        },
        KeyKind::Duration => match parse_duration(text) {
            Ok(_) => Ok(Value::Text(text.to_owned())),
            Err(why) => Err(why.to_string()),
        },
        KeyKind::Pairs => text
            .split(',')
            .filter(|pair| !pair.trim().is_empty())
            .map(|pair| match pair.split_once('=') {
                Some((name, value)) => Ok((name.trim().to_owned(), value.to_owned())),
                None => Err(expected(kind, pair)),
            })
            .collect::<Result<_, _>>()
            .map(Value::Pairs),
    }
}

pub(super) fn from_node(
    kind: KeyKind,
    optional: bool,
    node: &MarkedYaml<'_>,
) -> Result<Value, String> {
    match (&node.data, kind) {
        (YamlData::Sequence(items), KeyKind::Words) => items
            .iter()
            .map(|item| match &item.data {
                YamlData::Value(Scalar::String(text)) => Ok(text.to_string()),
                _ => Err("takes a list of words; quote what looks like a number".to_owned()),
            })
            .collect::<Result<_, _>>()
            .map(Value::Words),
        (YamlData::Mapping(pairs), KeyKind::Pairs) => pairs
            .iter()
            .map(|(name, value)| match (scalar(name), scalar(value)) {
                (Some(name), Some(value)) => Ok((name, value)),
                _ => Err(expected(kind, "a group or list")),
            })
            .collect::<Result<_, _>>()
            .map(Value::Pairs),
        (YamlData::Value(Scalar::String(_)), KeyKind::Number { .. } | KeyKind::Truth) => {
            Err(expected(kind, "text"))
        }
        (_, KeyKind::Words) => Err("takes a list, such as [a, b]".into()),
        (_, KeyKind::Pairs) => Err(expected(kind, "a single value")),
        // A key without a value leaves an optional setting unset.
        (
            YamlData::Value(Scalar::Null),
            KeyKind::Text
            | KeyKind::Money
            | KeyKind::Duration
            | KeyKind::Number { .. }
            | KeyKind::Word(_),
        ) if optional => Ok(Value::Unset),
        (YamlData::Value(Scalar::Null), _) => Err(expected(kind, "nothing")),
        (YamlData::Value(_), _) => {
            from_text(kind, &scalar(node).expect("a value that is not null"))
        }
        _ => Err(expected(kind, "a group or list")),
    }
}

/// The text of a single value.
fn scalar(node: &MarkedYaml<'_>) -> Option<String> {
    match &node.data {
        YamlData::Value(Scalar::Integer(number)) => Some(number.to_string()),
        YamlData::Value(Scalar::Boolean(truth)) => Some(truth.to_string()),
        YamlData::Value(Scalar::String(text)) => Some(text.to_string()),
        YamlData::Value(Scalar::FloatingPoint(number)) => Some(number.to_string()),
        _ => None,
    }
}

fn expected(kind: KeyKind, got: &str) -> String {
    match kind {
        KeyKind::Number { min, max } => {
            format!("takes a whole number from {min} to {max}, not {got}")
        }
        KeyKind::Truth => format!("takes true or false, not {got}"),
        KeyKind::Word(words) => format!("takes one of {}, not {got}", words.join(", ")),
        KeyKind::Words => format!("takes a list of words, not {got}"),
        KeyKind::Text => format!("takes a text, not {got}"),
        KeyKind::Money => format!("takes an amount such as 2.50, not {got}"),
        KeyKind::Duration => format!("takes a time such as 90s, 20m or 2h, not {got}"),
        KeyKind::Pairs => format!("takes names with values, such as {{A: b}}, not {got}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_in_a_variable_is_words_with_commas_or_a_list_as_in_a_file() {
        let words = |text: &str| from_text(KeyKind::Words, text);
        let two = Value::Words(vec!["--mem=9G".into(), "--qos=a,b".into()]);
        assert_eq!(words(r#"["--mem=9G", "--qos=a,b"]"#), Ok(two));
        assert_eq!(words("a, b"), Ok(Value::Words(vec!["a".into(), "b".into()])));
        assert_eq!(words("[]"), Ok(Value::Words(Vec::new())));
        for wrong in ["[a", "[[a]]", "[1]"] {
            assert!(words(wrong).is_err(), "{wrong}");
        }
    }
}
