//! Arithmetic with its working: the digits from the right, what is carried, then the result.

use bedplate_random::Random;

pub(super) fn exercises(draw: &mut Random) -> String {
    let mut text = String::new();
    for _ in 0..3 + draw.below(4) {
        let (left, right) = (number(draw), number(draw));
        text += &match draw.below(4) {
            0 | 1 => sum(left, right),
            2 => difference(left.max(right), left.min(right)),
            _ => comparison(left, right),
        };
        text.push('\n');
    }
    text
}

/// Of one to four digits, each count equally likely.
fn number(draw: &mut Random) -> u32 {
    let bound = 10usize.pow(1 + draw.below(4) as u32);
    draw.below(bound) as u32
}

fn sum(left: u32, right: u32) -> String {
    let mut text = format!("{left} + {right} = ?\n");
    let mut carry = 0;
    for (a, b) in columns(left, right) {
        let whole = a + b + carry;
        let carried = if carry > 0 { " + 1" } else { "" };
        text += &format!("{a} + {b}{carried} = {whole}: write {}, carry {}.\n", whole % 10, whole / 10);
        carry = whole / 10;
    }
    text + &format!("{left} + {right} = {}\n", left + right)
}

/// The left number is not the smaller one.
fn difference(left: u32, right: u32) -> String {
    let mut text = format!("{left} - {right} = ?\n");
    let mut borrow = 0;
    for (a, b) in columns(left, right) {
        let taken = b + borrow;
        let lent = if a < taken { 10 } else { 0 };
        let borrowed = if borrow > 0 { " - 1" } else { "" };
        let rest = a + lent - taken;
        text += &format!("{} - {b}{borrowed} = {rest}: write {rest}, borrow {}.\n", a + lent, lent / 10);
        borrow = lent / 10;
    }
    text + &format!("{left} - {right} = {}\n", left - right)
}

fn comparison(left: u32, right: u32) -> String {
    let sign = match left.cmp(&right) {
        std::cmp::Ordering::Less => '<',
        std::cmp::Ordering::Equal => '=',
        std::cmp::Ordering::Greater => '>',
    };
    let digits = left.max(right).max(1).ilog10() as usize + 1;
    let mut text = format!("{left} or {right}?\nas {left:0digits$} and {right:0digits$}: ");
    for (a, b) in columns(left, right).into_iter().rev() {
        match a.cmp(&b) {
            std::cmp::Ordering::Equal => text += &format!("{a} = {b}, "),
            std::cmp::Ordering::Less => return text + &format!("{a} < {b}, so {left} {sign} {right}\n"),
            std::cmp::Ordering::Greater => return text + &format!("{a} > {b}, so {left} {sign} {right}\n"),
        }
    }
    text + &format!("so {left} {sign} {right}\n")
}

/// The digits of both numbers from the right, as many as the longer one has.
fn columns(left: u32, right: u32) -> Vec<(u32, u32)> {
    let digits = left.max(right).max(1).ilog10() + 1;
    let digit = |number: u32, place: u32| number / 10u32.pow(place) % 10;
    (0..digits).map(|place| (digit(left, place), digit(right, place))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_shows_its_carries() {
        let expected =
            "47 + 85 = ?\n7 + 5 = 12: write 2, carry 1.\n4 + 8 + 1 = 13: write 3, carry 1.\n47 + 85 = 132\n";
        assert_eq!(sum(47, 85), expected);
    }

    #[test]
    fn a_difference_shows_what_is_borrowed() {
        let expected = "103 - 7 = ?\n13 - 7 = 6: write 6, borrow 1.\n10 - 0 - 1 = 9: write 9, borrow 1.\n1 - 0 - 1 = 0: write 0, borrow 0.\n103 - 7 = 96\n";
        assert_eq!(difference(103, 7), expected);
    }

    #[test]
    fn a_comparison_stops_at_the_first_digit_that_differs() {
        assert_eq!(comparison(503, 53), "503 or 53?\nas 503 and 053: 5 > 0, so 503 > 53\n");
        assert_eq!(comparison(7, 7), "7 or 7?\nas 7 and 7: 7 = 7, so 7 = 7\n");
    }

    /// Every line of the working is true.
    #[test]
    fn all_written_digits_make_up_the_result() {
        let mut draw = Random::scattered(5);
        for _ in 0..500 {
            let (left, right) = (number(&mut draw), number(&mut draw));
            let text = sum(left, right);
            let written: Vec<&str> =
                text.match_indices("write ").map(|(at, _)| &text[at + 6..at + 7]).collect();
            let carry = if text.contains("carry 1.\n")
                && text.rsplit("carry ").next().is_some_and(|end| end.starts_with('1'))
            {
                "1"
            } else {
                ""
            };
            let result: String =
                carry.chars().chain(written.iter().rev().flat_map(|digit| digit.chars())).collect();
            assert_eq!(result.parse::<u32>().unwrap(), left + right, "{text}");
        }
    }
}
