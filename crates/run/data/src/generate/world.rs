//! The state behind a story: who is where and who has what. Sentences follow it, so a reader can too.

use super::names::{Gender, name};
use bedplate_random::Random;

pub(super) const TRADES: [&str; 12] = [
    "baker", "farmer", "fisher", "hunter", "joiner", "miller", "painter", "piper", "potter", "sailor",
    "smith", "weaver",
];
const PLACES: [&str; 12] = [
    "barn", "bridge", "cellar", "garden", "harbor", "kitchen", "market", "mill", "orchard", "stable",
    "tower", "workshop",
];
const THINGS: [&str; 16] = [
    "apple", "basket", "bell", "book", "bowl", "candle", "coin", "drum", "hammer", "kettle", "key", "lamp",
    "letter", "ring", "rope", "shell",
];
const LOOKS: [&str; 10] =
    ["blue", "broken", "golden", "green", "heavy", "old", "red", "small", "warm", "white"];

pub(super) struct Person {
    pub(super) name: String,
    pub(super) gender: Gender,
    pub(super) trade: &'static str,
    pub(super) place: usize,
}

pub(super) struct Thing {
    pub(super) noun: &'static str,
    pub(super) look: &'static str,
    pub(super) holder: Holder,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    Person(usize),
    Place(usize),
}

pub(super) struct GeneratedWorld {
    pub(super) people: Vec<Person>,
    pub(super) things: Vec<Thing>,
    pub(super) places: Vec<&'static str>,
}

impl GeneratedWorld {
    pub(super) fn new(draw: &mut Random) -> Self {
        let places = distinct(draw, &PLACES, 3);
        let count = 2 + draw.below(2);
        let trades = distinct(draw, &TRADES, count);
        let things = distinct(draw, &THINGS, 3);
        let mut people: Vec<Person> = Vec::new();
        for trade in trades {
            // At least one of each gender, so that pronouns distinguish people.
            let gender = if people.len().is_multiple_of(2) { Gender::She } else { Gender::He };
            let mut chosen = name(draw, gender);
            while people.iter().any(|person| person.name == chosen) {
                chosen = name(draw, gender);
            }
            people.push(Person { name: chosen, gender, trade, place: draw.below(places.len()) });
        }
        let thing =
            |noun| Thing { noun, look: draw.pick(&LOOKS), holder: Holder::Place(draw.below(places.len())) };
        GeneratedWorld { things: things.into_iter().map(thing).collect(), people, places }
    }

    /// Where a thing is: with its holder.
    pub(super) fn place_of(&self, thing: usize) -> usize {
        match self.things[thing].holder {
            Holder::Person(person) => self.people[person].place,
            Holder::Place(place) => place,
        }
    }

    /// Things lying around where a person is.
    pub(super) fn within_reach(&self, person: usize) -> Vec<usize> {
        let here = Holder::Place(self.people[person].place);
        (0..self.things.len()).filter(|thing| self.things[*thing].holder == here).collect()
    }

    pub(super) fn held_by(&self, person: usize) -> Vec<usize> {
        let holder = Holder::Person(person);
        (0..self.things.len()).filter(|thing| self.things[*thing].holder == holder).collect()
    }

    pub(super) fn company_of(&self, person: usize) -> Vec<usize> {
        let place = self.people[person].place;
        (0..self.people.len())
            .filter(|other| *other != person && self.people[*other].place == place)
            .collect()
    }
}

/// Different entries of a list, in random order.
fn distinct(draw: &mut Random, choices: &[&'static str], count: usize) -> Vec<&'static str> {
    let mut left: Vec<&'static str> = choices.to_vec();
    (0..count).map(|_| left.swap_remove(draw.below(left.len()))).collect()
}
