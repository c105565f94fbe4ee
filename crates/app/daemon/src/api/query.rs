//! The parts of a path and of its query, decoded and checked.

use std::str::FromStr;

use super::error::ApiError;

/// No part of a path and no value of a query is longer.
const LONGEST: usize = 256;

/// The parameters after the question mark.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Parameters that the route does not have are refused: they would be misspelt ones.
    pub(crate) fn parse(text: &str, known: &[&'static str]) -> Result<Self, ApiError> {
        let mut pairs = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decoded = |text: &str| decode(&text.replace('+', " "));
            let (Some(name), Some(value)) = (decoded(name), decoded(value)) else {
                return Err(malformed(format!("`{}` is not well encoded", shortened(pair))));
            };
            if !known.contains(&&name[..]) {
                let near = bedplate_diag::nearest(&name, known.iter().copied());
                let meant = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
                return Err(malformed(format!("there is no parameter `{}` here{meant}", shortened(&name))));
            }
            if pairs.iter().any(|(other, _): &(String, String)| *other == name) {
                return Err(malformed(format!("`{name}` is there twice")));
            }
            pairs.push((name, value));
        }
        Ok(Self(pairs))
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| &value[..])
            .filter(|value| !value.is_empty())
    }

    pub(crate) fn value<T: FromStr>(&self, name: &str) -> Result<Option<T>, ApiError> {
        let read = |text: &str| {
            text.parse().map_err(|_| malformed(format!("`{name}` cannot be `{}`", shortened(text))))
        };
        self.text(name).map(read).transpose()
    }

    pub(crate) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        Ok(self.value(name)?.unwrap_or(false))
    }
}

pub(crate) fn malformed(why: String) -> ApiError {
    ApiError::Malformed { what: "the query", why }
}

fn shortened(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(40).collect()
}

/// A part of a path; nothing when it is badly encoded, too long, or holds what no name has.
pub(crate) fn segment(text: &str) -> Option<String> {
    decode(text)
        .filter(|decoded| !decoded.is_empty() && decoded != "." && decoded != ".." && !decoded.contains('/'))
}

fn decode(text: &str) -> Option<String> {
    bedplate_http::decoded(text, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_path_are_decoded_and_tricks_are_refused() {
        let long = "a".repeat(257);
        for (text, expected) in [
            ("12_3", Some("12_3")),
            ("n%311", Some("n11")),
            ("%c3%a4", Some("ä")),
            ("%2e%2e", None),
            ("..", None),
            (".", None),
            ("", None),
            ("a%2fb", None),
            ("a%00b", None),
            ("a%0ab", None),
            ("%zz", None),
            ("%4", None),
            ("%ff", None),
            (&long, None),
        ] {
            assert_eq!(segment(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn queries_are_read_and_unknown_or_doubled_parameters_are_refused() {
        let query = Query::parse("name=a+b%26c&limit=3&follow", &["name", "limit", "follow"]).unwrap();
        assert_eq!(query.text("name"), Some("a b&c"));
        assert_eq!(query.value::<u32>("limit").unwrap(), Some(3));
        assert_eq!(query.text("follow"), None);
        assert!(query.value::<u32>("name").is_err());
        for (wrong, told) in
            [("limt=3", "did you mean `limit`"), ("limit=1&limit=2", "twice"), ("limit=%", "encoded")]
        {
            let error = Query::parse(wrong, &["limit"]).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
