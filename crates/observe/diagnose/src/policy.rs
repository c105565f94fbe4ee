//! What a site wants done about a verdict.
//!
//! The rules are asked in order; the first that a firm verdict fits says what follows, and without one it is told. What follows here
//! is a wish: how often a job may be moved, and whether a node goes out of service, is for `blame` to say, because most of what a
//! verdict rests on is the job's own word.

use crate::verdict::{Cause, Culprit, JobVerdict, ProblemKind};

/// What follows from a verdict, the mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FollowUp {
    /// It is kept for those who ask for it.
    Nothing,
    /// It becomes a note, an event, a metric and so an alert.
    Tell,
    /// Also, the state of all ranks is written down: what their processes wait for.
    Dump,
    /// Also, the job starts again from its newest checkpoint.
    Restart,
    /// Also, it starts again on other nodes than the culprits, which its word accuses.
    Replace,
}

impl FollowUp {
    pub const ALL: [(&'static str, FollowUp); 5] = [
        ("nothing", FollowUp::Nothing),
        ("tell", FollowUp::Tell),
        ("dump", FollowUp::Dump),
        ("restart", FollowUp::Restart),
        ("replace", FollowUp::Replace),
    ];

    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, follow)| follow)
    }
}

/// One rule of a site.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyRule {
    /// Any, where empty.
    pub kinds: Vec<ProblemKind>,
    pub causes: Vec<Cause>,
    /// The least confidence in the cause; for [`FollowUp::Replace`] in the culprit too.
    pub confidence: f64,
    pub then: FollowUp,
}

impl PolicyRule {
    pub const USUAL_CONFIDENCE: f64 = 0.7;

    fn fits(&self, verdict: &JobVerdict) -> bool {
        let has_kind = self.kinds.is_empty() || self.kinds.contains(&verdict.kind);
        let has_cause = self.causes.is_empty() || self.causes.contains(&verdict.cause);
        let is_sure = match self.then {
            FollowUp::Nothing | FollowUp::Tell | FollowUp::Dump => true,
            FollowUp::Restart => verdict.confidence >= self.confidence,
            FollowUp::Replace => {
                verdict.confidence >= self.confidence
                    && verdict.culprit_confidence >= self.confidence
                    && !verdict.culprits.is_empty()
            }
        };
        has_kind && has_cause && is_sure
    }
}

/// The rules of a site; by default every firm verdict is told.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Policy {
    pub rules: Vec<PolicyRule>,
}

impl Policy {
    pub fn after(&self, verdict: &JobVerdict) -> FollowUp {
        if !verdict.is_firm {
            return FollowUp::Nothing;
        }
        self.rules.iter().find(|rule| rule.fits(verdict)).map_or(FollowUp::Tell, |rule| rule.then)
    }
}

impl JobVerdict {
    /// What is wrong, where the reason lies and who is to blame, for a line among others.
    pub fn in_short(&self) -> String {
        let culprits: Vec<String> = self.culprits.iter().take(2).map(Culprit::to_string).collect();
        let culprits =
            if culprits.is_empty() { String::new() } else { format!(" ({})", culprits.join(", ")) };
        match self.cause {
            Cause::Unknown => format!("{}{culprits}", self.kind),
            cause => format!("{}: {cause}{culprits}", self.kind),
        }
    }
}

impl ProblemKind {
    pub const ALL: [ProblemKind; 6] = [
        ProblemKind::Crashed,
        ProblemKind::Stall,
        ProblemKind::Diverging,
        ProblemKind::SlowSince,
        ProblemKind::SlowerThanPredicted,
        ProblemKind::Unstable,
    ];

    /// The kind that files call by this name: `slow-since`.
    pub fn of_key(key: &str) -> Option<ProblemKind> {
        Self::ALL.into_iter().find(|kind| kind.name().replace(' ', "-") == key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(causes: &[Cause], then: FollowUp) -> PolicyRule {
        PolicyRule { kinds: Vec::new(), causes: causes.to_vec(), confidence: 0.7, then }
    }

    #[test]
    fn the_first_rule_that_fits_counts_and_suspicions_move_nobody() {
        let policy =
            Policy { rules: vec![rule(&[Cause::Hardware], FollowUp::Replace), rule(&[], FollowUp::Dump)] };
        let mut verdict = JobVerdict::new(ProblemKind::SlowSince, Cause::Hardware, 0.9);
        assert_eq!(policy.after(&verdict), FollowUp::Dump, "nobody to replace");
        verdict.culprits = vec![Culprit::Rank(3)];
        verdict.culprit_confidence = 0.85;
        assert_eq!(policy.after(&verdict), FollowUp::Replace);
        verdict.confidence = 0.6;
        assert_eq!(policy.after(&verdict), FollowUp::Dump);
        verdict.is_firm = false;
        assert_eq!(policy.after(&verdict), FollowUp::Nothing);
        let told = JobVerdict::new(ProblemKind::Stall, Cause::Unknown, 0.0);
        assert_eq!(Policy::default().after(&told), FollowUp::Tell);
    }

    #[test]
    fn verdicts_fit_on_a_line() {
        let mut verdict = JobVerdict::new(ProblemKind::SlowSince, Cause::Hardware, 0.9);
        verdict.culprits = vec![Culprit::Rank(3), Culprit::Node("n2".into()), Culprit::Node("n3".into())];
        assert_eq!(verdict.in_short(), "slow since: hardware (rank 3, node n2)");
        assert_eq!(JobVerdict::new(ProblemKind::Stall, Cause::Unknown, 0.0).in_short(), "stall");
        assert!(
            ProblemKind::ALL
                .iter()
                .all(|kind| ProblemKind::of_key(&kind.name().replace(' ', "-")) == Some(*kind))
        );
    }
}
