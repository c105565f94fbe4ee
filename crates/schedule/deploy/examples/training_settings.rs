//! Prints the settings of many layouts for one trainer, as JSON lines, for checks by the trainer itself.
//!
//! `cargo run -p bedplate-deploy --example training_settings -- Megatron-LM`

#![expect(clippy::print_stdout, reason = "an example prints")]

#[path = "../tests/training/corpus.rs"]
mod corpus;

use bedplate_deploy::training::Trainer;

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let trainers = Trainer::ALL.into_iter().filter(|trainer| wanted.is_empty() || trainer.name() == wanted);
    for trainer in trainers {
        for case in corpus::cases() {
            match trainer.settings(&case.job()) {
                Ok(settings) => println!("{{\"name\": {:?}, \"settings\": {settings:?}}}", case.name()),
                Err(lacks) => println!("{{\"name\": {:?}, \"lacks\": {:?}}}", case.name(), lacks.to_string()),
            }
        }
    }
}
