//! Why pods wait, in the words of their condition.

use std::collections::BTreeMap;

use bedplate_gangs::{JobId, Never, Wait};

use crate::Waiting;
use crate::action::UNSCHEDULABLE;

pub(crate) fn no_exact_fit() -> Waiting {
    let message = "nodes were found, but something that is not planned for has run out on them".to_owned();
    Waiting { reason: UNSCHEDULABLE, message }
}

/// New nodes help a gang for which the cluster is too small, and no other that is refused.
pub(crate) fn refused(why: &Never) -> Waiting {
    let by_size = matches!(
        why,
        Never::NoSuchNodes { .. }
            | Never::LevelTooSmall { .. }
            | Never::RolesDoNotFit
            | Never::TooFewSegments { .. }
    );
    Waiting { reason: if by_size { UNSCHEDULABLE } else { "Refused" }, message: why.to_string() }
}

pub(crate) fn waits(wait: Option<&Wait>, names: &BTreeMap<JobId, String>) -> Waiting {
    let Some(wait) = wait.filter(|wait| **wait != Wait::NotTriedYet) else {
        let message = "not enough is free for all pods of its gang at once".to_owned();
        return Waiting { reason: UNSCHEDULABLE, message };
    };
    let mut message = wait.to_string();
    let named = match wait {
        Wait::Resources { until, .. } => *until,
        Wait::BehindReservation { of, .. } => Some(*of),
        Wait::InOrder { behind } | Wait::Singleton { behind } => Some(*behind),
        _ => None,
    };
    if let Some(job) = named {
        let name = names.get(&job).map_or("a pod of another scheduler", String::as_str);
        message = message.replace(&job.to_string(), name);
    }
    let by_quota = matches!(wait, Wait::Quota { .. } | Wait::Limit { .. });
    let reason = match wait {
        _ if wait.is_for_resources() => UNSCHEDULABLE,
        Wait::Preempting { .. } => "Preempting",
        _ if by_quota => "QuotaUsed",
        _ => "Waiting",
    };
    Waiting { reason, message }
}
