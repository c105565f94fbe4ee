//! "Did you mean": the known names nearest to a misspelt one.

/// A name that differs by more than this share of its length is not suggested.
const SIMILAR_ENOUGH: f64 = 0.75;

/// The known name nearest to `wanted`, or `None` when nothing is close.
pub fn nearest<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_names(wanted, known, 1).into_iter().next()
}

/// Up to `limit` known names close to `wanted`, nearest first, ties in the order given.
pub fn nearest_names<'a>(
    wanted: &str,
    known: impl IntoIterator<Item = &'a str>,
    limit: usize,
) -> Vec<&'a str> {
    // Long garbage matches nothing, and edit distance is quadratic in its length.
    if wanted.len() > 100 {
        return Vec::new();
    }
    let wanted = wanted.to_lowercase();
    let mut scored: Vec<(f64, &str)> = known
        .into_iter()
        .map(|name| (similarity(&wanted, &name.to_lowercase()), name))
        .filter(|(score, _)| *score >= SIMILAR_ENOUGH)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    scored.truncate(limit);
    scored.into_iter().map(|(_, name)| name).collect()
}

/// Edit distance as a share of the longer name; a name that begins with the wanted one counts as close.
fn similarity(wanted: &str, name: &str) -> f64 {
    let completes = if wanted.len() >= 2 && name.starts_with(wanted) { 0.9 } else { 0.0 };
    strsim::normalized_damerau_levenshtein(wanted, name)
        .max(strsim::jaro_winkler(wanted, name) - 0.12)
        .max(completes)
}
