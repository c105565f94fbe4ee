//! Names that are made up anew for each document, so that a reader must remember them.

use bedplate_random::Random;

const BEGINNINGS: [&str; 24] = [
    "Al", "Bar", "Bren", "Cal", "Dor", "El", "Fen", "Gal", "Hel", "Ir", "Jor", "Kel", "Lan", "Mar", "Nor",
    "Or", "Pel", "Quin", "Ros", "Sal", "Tam", "Ul", "Vel", "Wil",
];
const MIDDLES: [&str; 12] = ["", "", "", "a", "de", "i", "ka", "li", "mo", "ne", "ri", "su"];
const HIS_ENDINGS: [&str; 6] = ["bert", "den", "dor", "mund", "rik", "ton"];
const HER_ENDINGS: [&str; 6] = ["da", "la", "lina", "ma", "ra", "sa"];

/// Whom a pronoun can mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gender {
    He,
    She,
}

impl Gender {
    pub(super) fn subject(self) -> &'static str {
        match self {
            Gender::He => "he",
            Gender::She => "she",
        }
    }

    pub(super) fn possessive(self) -> &'static str {
        match self {
            Gender::He => "his",
            Gender::She => "her",
        }
    }
}

/// A name tells the gender by its ending.
pub(super) fn name(draw: &mut Random, gender: Gender) -> String {
    let ending = match gender {
        Gender::He => draw.pick(&HIS_ENDINGS),
        Gender::She => draw.pick(&HER_ENDINGS),
    };
    format!("{}{}{ending}", draw.pick(&BEGINNINGS), draw.pick(&MIDDLES))
}
