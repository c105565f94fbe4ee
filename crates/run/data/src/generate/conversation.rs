//! Generated documents as conversations: a question and its answer.

use super::{CorpusKind, generate};
use crate::chat::Message;

/// The conversation with this number: an exercise and its working, or a story with a question and its answer.
pub fn generate_conversation(kind: CorpusKind, seed: u64, number: u64) -> Vec<Message> {
    let text = generate(kind, seed, number);
    let (question, answer) = match text.contains("?\n") {
        true => exercise(&text),
        false => question(&text),
    }
    .expect("every document holds a question");
    vec![Message::new("user", &question), Message::new("assistant", &answer)]
}

/// The first exercise: its first line asks.
fn exercise(text: &str) -> Option<(String, String)> {
    let (first, _) = text.split_once("\n\n")?;
    let (question, working) = first.split_once('\n')?;
    Some((question.to_owned(), working.to_owned()))
}

/// The story and the last of its questions.
fn question(text: &str) -> Option<(String, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let (last, before) = lines.split_last()?;
    let (asked, answer) = last.split_once("? ")?;
    let told = before.iter().filter(|line| !line.contains("? "));
    let story = told.copied().collect::<Vec<_>>().join("\n");
    Some((format!("{story}\n{asked}?"), answer.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_question_and_an_answer() {
        for number in 0..500 {
            let [question, answer] =
                <[Message; 2]>::try_from(generate_conversation(CorpusKind::Mixture, 3, number)).unwrap();
            assert!(question.text().ends_with('?') && question.text().matches('?').count() == 1);
            assert!(!answer.text().is_empty() && !answer.text().contains('?'));
        }
        let sum = (0..).map(|number| generate_conversation(CorpusKind::Arithmetic, 1, number));
        let sum = sum.into_iter().find(|turns| turns[0].text().contains('+')).unwrap();
        assert!(
            sum[1].text().contains("carry") && sum[1].text().contains(sum[0].text().trim_end_matches('?'))
        );
    }
}
