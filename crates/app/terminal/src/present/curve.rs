//! A curve in the terminal: values over steps, drawn with plain characters.

/// Draws values from left to right, `height` lines high and at most `width` columns wide. The axis on the left has three
/// labels; where there are more values than columns, a column shows the mean of its share.
pub fn draw_curve(values: &[f64], width: usize, height: usize) -> Vec<String> {
    let (low, high) = values
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(*value), high.max(*value)));
    if values.is_empty() || !(high - low).is_finite() || height < 2 {
        return Vec::new();
    }
    let label = |value: f64| format!("{value:>7.2}");
    let columns = columns(values, width.saturating_sub(10).max(1));
    let span = (high - low).max(1e-9);
    let line_of = |value: f64| ((high - value) / span * (height - 1) as f64).round() as usize;
    let middle = (height - 1) / 2;
    (0..height)
        .map(|line| {
            let label = match line {
                0 => label(high),
                _ if line == height - 1 => label(low),
                _ if line == middle => label(high - span * line as f64 / (height - 1) as f64),
                _ => " ".repeat(7),
            };
            let drawn: String =
                columns.iter().map(|value| if line_of(*value) == line { '*' } else { ' ' }).collect();
            format!("{label} |{}", drawn.trim_end())
        })
        .collect()
}

/// The values in as many columns, each the mean of its share.
fn columns(values: &[f64], width: usize) -> Vec<f64> {
    let count = values.len().min(width);
    let share = |column: usize| &values[column * values.len() / count..(column + 1) * values.len() / count];
    (0..count).map(|column| share(column).iter().sum::<f64>() / share(column).len() as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_falling_curve_falls() {
        let drawn = draw_curve(&[4.0, 3.0, 2.0, 1.0, 1.0], 40, 4);
        assert_eq!(drawn, ["   4.00 |*", "   3.00 | *", "        |  *", "   1.00 |   **"]);
    }

    #[test]
    fn many_values_share_columns_and_none_draw_nothing() {
        let values: Vec<f64> = (0..1000).map(f64::from).collect();
        let drawn = draw_curve(&values, 30, 5);
        assert!(drawn.iter().all(|line| line.chars().count() <= 30), "{drawn:?}");
        assert_eq!(drawn.iter().map(|line| line.matches('*').count()).sum::<usize>(), 20);
        assert!(draw_curve(&[], 30, 5).is_empty());
        assert!(draw_curve(&[f64::NAN, 1.0], 30, 5).is_empty() || draw_curve(&[1.0], 30, 5).len() == 5);
    }
}
