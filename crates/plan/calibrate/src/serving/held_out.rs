//! Constants fitted without each source, by which its rows are predicted as those of a stranger would be.
//!
//! A source is a model on a GPU ([`ServingCase::source`]). The fits take minutes, so their results are data; they belong to
//! `data/serving/constants.toml`, and a test fails when that file was fitted anew and this one was not.

use std::collections::BTreeMap;

use bedplate_diag::Source;
use bedplate_document::{DocumentError, Table};
use bedplate_perf::serving::ServingConstants;
use bedplate_perf::{Field, Origin};

use super::ServingCase;

/// The fits without each source.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldOut {
    /// The constants of all sources.
    all: ServingConstants,
    fits: BTreeMap<String, ServingConstants>,
}

impl HeldOut {
    /// Fits without each source, near constants of all of them.
    pub fn new(all: ServingConstants, fits: BTreeMap<String, ServingConstants>) -> Self {
        Self { all, fits }
    }

    /// The fits that belong to the built-in constants.
    pub fn builtin() -> Self {
        let text = include_str!("../../../../../data/serving/held_out.toml");
        Self::read(Source::new("data/serving/held_out.toml", text))
            .expect("the embedded fits are valid: checked by a test")
    }

    /// The constants by which a row is predicted: those fitted without its source, else `usual`, which have not seen it.
    pub fn constants<'a>(&'a self, case: &ServingCase, usual: &'a ServingConstants) -> &'a ServingConstants {
        self.fits.get(&case.source()).unwrap_or(usual)
    }

    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.fits.keys().map(String::as_str)
    }

    /// Reads fits. What a file does not list is as in the built-in constants.
    pub fn read(source: Source<'_>) -> Result<Self, DocumentError> {
        let file = Table::parse(source)?.titled("the held-out fits");
        let names: Vec<String> = file.required("constants")?;
        let place = |name: &String| ServingConstants::FIELDS.iter().position(|field| field.name == *name);
        let unknown = || file.bad_value("constants", "one of them is not a serving constant");
        let places: Vec<usize> = names.iter().map(place).collect::<Option<_>>().ok_or_else(unknown)?;
        let values = |table: &Table, key: &str| {
            let list: Vec<f64> = table.required(key)?;
            if list.len() != places.len() {
                return Err(table.bad_value(key, "there must be one for each of the constants"));
            }
            let mut values = ServingConstants::builtin().values();
            for (place, value) in places.iter().zip(list) {
                values[*place] = value;
            }
            Ok(ServingConstants::from_values(&values))
        };
        let all = values(&file, "all")?;
        let mut fits = BTreeMap::new();
        for table in file.tables("source")? {
            fits.insert(table.required("name")?, values(&table, "values")?);
            table.finish()?;
        }
        file.finish()?;
        Ok(Self { all, fits })
    }

    pub fn to_toml(&self) -> String {
        let fitted: Vec<(usize, &Field)> = fitted().collect();
        let names: Vec<String> = fitted.iter().map(|(_, field)| format!("\"{}\"", field.name)).collect();
        let list = |constants: &ServingConstants| {
            let values = constants.values();
            let values = fitted.iter().map(|(index, _)| format!("{:.3e}", values[*index]));
            values.collect::<Vec<_>>().join(", ")
        };
        let mut text = format!("constants = [{}]\nall = [{}]\n", names.join(", "), list(&self.all));
        for (name, constants) in &self.fits {
            text.push_str(&format!("\n[[source]]\nname = \"{name}\"\nvalues = [{}]\n", list(constants)));
        }
        text
    }
}

fn fitted() -> impl Iterator<Item = (usize, &'static Field)> {
    ServingConstants::FIELDS.iter().enumerate().filter(|(_, field)| field.origin == Origin::Serving)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fits_are_written_as_they_are_read() {
        let builtin = HeldOut::builtin();
        assert!(builtin.sources().count() >= 20);
        let text = builtin.to_toml();
        assert_eq!(HeldOut::read(Source::new("again.toml", &text)).expect("it is what was written"), builtin);
    }

    #[test]
    fn the_fits_belong_to_the_constants() {
        let all = HeldOut::builtin().all;
        assert_eq!(all, ServingConstants::builtin(), "data/serving/README.md says how to make them again");
    }

    #[test]
    fn a_file_that_does_not_fit_is_refused() {
        for (text, flaw) in [
            ("constants = [\"nonsense\"]", "not a serving constant"),
            ("constants = [\"maturity\"]\nall = [1.0, 2.0]", "one for each"),
        ] {
            let error = HeldOut::read(Source::new("x.toml", text)).expect_err("it is flawed");
            assert!(error.to_string().contains(flaw), "{error}");
        }
    }
}
