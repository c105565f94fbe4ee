//! Breakdowns in JSON: `{"compute": {"exposed_s": 0.31, "hidden_s": 0.0}, …}`.
//!
//! Parts that took no time are left out. A bare number is read as exposed seconds, which is what most programs
//! can measure. Unknown parts and seconds that are negative or not finite are refused.

use std::fmt;
use std::marker::PhantomData;

use bedplate_units::Seconds;
use serde::de::{Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Breakdown, Part, Span};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Times {
    exposed_s: f64,
    #[serde(default)]
    hidden_s: f64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum PartTime {
    Exposed(f64),
    Both(Times),
}

impl<Origin> Serialize for Breakdown<Origin> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (part, span) in self.parts().filter(|(_, span)| *span != Span::default()) {
            let times = Times { exposed_s: span.exposed.get(), hidden_s: span.hidden.get() };
            map.serialize_entry(part.name(), &times)?;
        }
        map.end()
    }
}

impl<'de, Origin> Deserialize<'de> for Breakdown<Origin> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Parts(PhantomData))
    }
}

struct Parts<Origin>(PhantomData<Origin>);

impl<'de, Origin> Visitor<'de> for Parts<Origin> {
    type Value = Breakdown<Origin>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("seconds by part")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut breakdown = Breakdown::default();
        while let Some((name, time)) = map.next_entry::<String, PartTime>()? {
            let part = Part::find(&name).ok_or_else(|| A::Error::custom("no such part of a step"))?;
            let Times { exposed_s, hidden_s } = match time {
                PartTime::Exposed(exposed_s) => Times { exposed_s, hidden_s: 0.0 },
                PartTime::Both(times) => times,
            };
            let is_time = |seconds: f64| seconds.is_finite() && seconds >= 0.0;
            if !is_time(exposed_s) || !is_time(hidden_s) {
                return Err(A::Error::custom("a part cannot take that long"));
            }
            breakdown[part] = Span { exposed: Seconds::new(exposed_s), hidden: Seconds::new(hidden_s) };
        }
        Ok(breakdown)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Breakdown, Measured};

    fn read(text: &str) -> Option<String> {
        let breakdown: Breakdown<Measured> = serde_json::from_str(text).ok()?;
        Some(serde_json::to_string(&breakdown).unwrap())
    }

    #[test]
    fn parts_are_written_as_they_are_read_and_numbers_are_exposed_seconds() {
        let whole =
            r#"{"compute":{"exposed_s":1.5,"hidden_s":0.5},"host":{"exposed_s":0.25,"hidden_s":0.0}}"#;
        assert_eq!(read(whole).as_deref(), Some(whole));
        assert_eq!(read(r#"{"host":2}"#).unwrap(), r#"{"host":{"exposed_s":2.0,"hidden_s":0.0}}"#);
        assert_eq!(read(r#"{"host":0}"#).as_deref(), Some("{}"));
        for wrong in [
            r#"{"magic":1}"#,
            r#"{"host":-1}"#,
            r#"{"host":{"exposed_s":1,"more":1}}"#,
            "[]",
            r#"{"host":1e999}"#,
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
