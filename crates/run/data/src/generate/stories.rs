//! Stories: a world is described, things happen in it, questions are asked and answered.

use super::sentences::{capital, descriptive};
use super::world::{GeneratedWorld, Holder};
use bedplate_random::Random;

pub(super) fn story(draw: &mut Random) -> String {
    let mut teller = Teller { world: GeneratedWorld::new(draw), text: String::new(), topic: None };
    teller.introduce(draw);
    for _ in 0..5 + draw.below(8) {
        match draw.chance(25) {
            true => teller.say(descriptive(draw)),
            false => teller.happen(draw),
        }
    }
    teller.text.push('\n');
    for _ in 0..2 + draw.below(3) {
        teller.ask(draw);
    }
    teller.text
}

struct Teller {
    world: GeneratedWorld,
    text: String,
    /// The person in the last sentence, whom a pronoun may refer to.
    topic: Option<usize>,
}

impl Teller {
    fn say(&mut self, sentence: String) {
        if !(self.text.is_empty() || self.text.ends_with('\n')) {
            self.text.push(' ');
        }
        self.text += &capital(&sentence);
        self.topic = None;
    }

    fn introduce(&mut self, draw: &mut Random) {
        for person in 0..self.world.people.len() {
            let who = &self.world.people[person];
            let (name, trade, place) = (&who.name, who.trade, self.world.places[who.place]);
            let sentence = match draw.below(3) {
                0 => format!("{name} the {trade} is in the {place}."),
                1 => format!("{name} is a {trade} and works in the {place}."),
                _ => format!("in the {place} lives {name}, who is a {trade}."),
            };
            self.say(sentence);
        }
        for thing in 0..self.world.things.len() {
            let place = self.world.places[self.world.place_of(thing)];
            let phrase = self.phrase(thing, true);
            self.say(format!("{phrase} is in the {place}."));
        }
        self.text.push('\n');
    }

    /// A person does something that is possible where they are.
    fn happen(&mut self, draw: &mut Random) {
        let person = draw.below(self.world.people.len());
        let (near, held) = (self.world.within_reach(person), self.world.held_by(person));
        let company = self.world.company_of(person);
        match draw.below(4) {
            0 if !held.is_empty() && !company.is_empty() => {
                let (thing, other) = (draw.pick(&held), draw.pick(&company));
                self.give(draw, person, thing, other);
            }
            1 if !held.is_empty() => {
                let thing = draw.pick(&held);
                self.drop(draw, person, thing);
            }
            0..=2 if !near.is_empty() => {
                let thing = draw.pick(&near);
                self.take(draw, person, thing);
            }
            _ => self.go(draw, person),
        }
    }

    fn go(&mut self, draw: &mut Random, person: usize) {
        let from = self.world.people[person].place;
        let to = (from + 1 + draw.below(self.world.places.len() - 1)) % self.world.places.len();
        let (who, verb) = (self.mention(draw, person), draw.pick(&["goes", "walks", "runs", "hurries"]));
        self.world.people[person].place = to;
        let carried = self.world.held_by(person);
        let with = match carried.first() {
            Some(thing) if draw.chance(50) => format!(" with {}", self.phrase(*thing, false)),
            _ => String::new(),
        };
        self.tell(person, format!("{who} {verb} to the {}{with}.", self.world.places[to]));
    }

    fn take(&mut self, draw: &mut Random, person: usize, thing: usize) {
        let (who, verb) = (self.mention(draw, person), draw.pick(&["takes", "picks up", "finds"]));
        self.world.things[thing].holder = Holder::Person(person);
        let is_full = draw.chance(50);
        self.tell(person, format!("{who} {verb} {}.", self.phrase(thing, is_full)));
    }

    fn drop(&mut self, draw: &mut Random, person: usize, thing: usize) {
        let (who, verb) = (self.mention(draw, person), draw.pick(&["leaves", "puts down", "drops"]));
        let place = self.world.people[person].place;
        self.world.things[thing].holder = Holder::Place(place);
        let what = self.phrase(thing, false);
        self.tell(person, format!("{who} {verb} {what} in the {}.", self.world.places[place]));
    }

    fn give(&mut self, draw: &mut Random, person: usize, thing: usize, other: usize) {
        let who = self.mention(draw, person);
        self.world.things[thing].holder = Holder::Person(other);
        let (what, name) = (self.phrase(thing, false), self.world.people[other].name.clone());
        let sentence = match draw.chance(50) {
            true => format!("{who} gives {what} to {name}."),
            false => format!("{who} hands {name} {what} and smiles."),
        };
        self.tell(person, sentence);
    }

    fn tell(&mut self, person: usize, sentence: String) {
        self.say(sentence);
        self.topic = Some(person);
    }

    /// A pronoun where it is unambiguous, otherwise the name.
    fn mention(&self, draw: &mut Random, person: usize) -> String {
        let who = &self.world.people[person];
        let is_plain = self.topic == Some(person);
        if is_plain && draw.chance(70) { who.gender.subject().to_owned() } else { who.name.clone() }
    }

    fn phrase(&self, thing: usize, is_full: bool) -> String {
        let thing = &self.world.things[thing];
        if is_full { format!("the {} {}", thing.look, thing.noun) } else { format!("the {}", thing.noun) }
    }

    fn ask(&mut self, draw: &mut Random) {
        let line = match draw.below(4) {
            0 => self.ask_where_thing(draw),
            1 => self.ask_who_has(draw),
            2 => self.ask_where_person(draw),
            _ => self.ask_trade(draw),
        };
        self.text += &line;
        self.text.push('\n');
    }

    fn ask_where_thing(&self, draw: &mut Random) -> String {
        let thing = draw.below(self.world.things.len());
        let (noun, place) = (self.world.things[thing].noun, self.world.places[self.world.place_of(thing)]);
        let with = match self.world.things[thing].holder {
            Holder::Person(person) => format!(" with {}", self.world.people[person].name),
            Holder::Place(_) => String::new(),
        };
        format!("Where is the {noun}? It is in the {place}{with}.")
    }

    fn ask_who_has(&self, draw: &mut Random) -> String {
        let thing = draw.below(self.world.things.len());
        let noun = self.world.things[thing].noun;
        match self.world.things[thing].holder {
            Holder::Person(person) => {
                format!("Who has the {noun}? {} has it.", self.world.people[person].name)
            }
            Holder::Place(place) => {
                format!("Who has the {noun}? Nobody has it; it lies in the {}.", self.world.places[place])
            }
        }
    }

    fn ask_where_person(&self, draw: &mut Random) -> String {
        let who = &self.world.people[draw.below(self.world.people.len())];
        let place = self.world.places[who.place];
        format!("Where is {}? {} is in the {place}.", who.name, capital(who.gender.subject()))
    }

    fn ask_trade(&self, draw: &mut Random) -> String {
        let who = &self.world.people[draw.below(self.world.people.len())];
        let (trade, possessive) = (who.trade, who.gender.possessive());
        format!("Who is the {trade}? {} is, and {possessive} work is never done.", who.name)
    }
}
