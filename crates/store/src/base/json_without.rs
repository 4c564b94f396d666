//! Parses JSON without one part, so that the part costs no memory and little time.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

/// Parses everything except a path of keys and its value.
pub(crate) fn json_without(path: &[&str], json: &[u8]) -> serde_json::Result<Value> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let value = Without(path).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// An object or null, without the rest of the path.
struct Without<'a>(&'a [&'a str]);

impl<'de> DeserializeSeed<'de> for Without<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Without<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or null")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            let value = match self.0 {
                [last] if *last == key => {
                    members.next_value::<IgnoredAny>()?;
                    continue;
                }
                [first, rest @ ..] if *first == key => members.next_value_seed(Without(rest))?,
                _ => members.next_value()?,
            };
            kept.insert(key, value);
        }
        Ok(Value::Object(kept))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn without(path: &[&str], value: &Value) -> Value {
        json_without(path, value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn only_the_value_at_the_path_is_removed() {
        let all =
            json!({"a": {"b": [1, {"b": 2}], "c": [{"b": "}"}]}, "b": -3, "d": {"a": {"b": 1.5}}});
        let kept = json!({"a": {"c": [{"b": "}"}]}, "b": -3, "d": {"a": {"b": 1.5}}});
        assert_eq!(without(&["a", "b"], &all), kept);
        for same in [json!({}), json!({"a": null}), json!(null), json!({"a": {"x": "b"}})] {
            assert_eq!(without(&["a", "b"], &same), same);
        }
    }

    #[test]
    fn json_of_another_form_is_an_error() {
        for bad in [r#"{"a": {"b": [1}}"#, r#"{"a": 1}"#, r#"{"a": {}} {}"#, "", "[]"] {
            assert!(json_without(&["a", "b"], bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
