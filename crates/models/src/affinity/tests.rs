//! The choice by prefixes, the bound of the table, and a simulation of tenants with long system
//! prompts on several backends.

use super::*;

fn running<'a>(loads: &'a [usize]) -> impl Fn(BackendId) -> Option<usize> + 'a {
    |id| loads.get(id as usize - 1).copied()
}

#[test]
fn the_longest_known_prefix_decides() {
    let mut table = PrefixTable::default();
    assert_eq!(
        table.choose(PromptPrefixes([1, 0, 0, 0]), running(&[0, 0]), |_| 4),
        PrefixChoice::Unknown
    );
    table.note(PromptPrefixes([1, 2, 0, 0]), 1);
    table.note(PromptPrefixes([1, 3, 0, 0]), 2);
    assert_eq!(
        table.choose(PromptPrefixes([1, 2, 9, 0]), running(&[3, 0]), |_| 4),
        PrefixChoice::Hit(1)
    );
    assert_eq!(
        table.choose(PromptPrefixes([1, 3, 0, 0]), running(&[0, 3]), |_| 4),
        PrefixChoice::Hit(2)
    );
    assert_eq!(
        table.choose(PromptPrefixes([0; 4]), running(&[0, 0]), |_| 4),
        PrefixChoice::Unknown,
        "a short prompt"
    );
}

#[test]
fn a_backend_beyond_the_bound_is_not_preferred() {
    let mut table = PrefixTable::default();
    table.note(PromptPrefixes([1, 2, 0, 0]), 1);
    assert_eq!(
        table.choose(PromptPrefixes([1, 2, 0, 0]), running(&[4, 0]), |_| 4),
        PrefixChoice::OverBound
    );
    // Another backend has a shorter prefix.
    table.note(PromptPrefixes([1, 3, 0, 0]), 2);
    assert_eq!(
        table.choose(PromptPrefixes([1, 2, 0, 0]), running(&[4, 0]), |_| 4),
        PrefixChoice::Hit(2)
    );
}

#[test]
fn of_several_with_the_prefix_the_least_loaded_is_chosen() {
    let mut table = PrefixTable::default();
    table.note(PromptPrefixes([1, 0, 0, 0]), 1);
    table.note(PromptPrefixes([1, 0, 0, 0]), 2);
    assert_eq!(
        table.choose(PromptPrefixes([1, 0, 0, 0]), running(&[1, 2]), |_| 4),
        PrefixChoice::Hit(1)
    );
    assert_eq!(
        table.choose(PromptPrefixes([1, 0, 0, 0]), running(&[2, 1]), |_| 4),
        PrefixChoice::Hit(2)
    );
    assert_eq!(
        table.choose(PromptPrefixes([1, 0, 0, 0]), running(&[1, 1]), |_| 4),
        PrefixChoice::Hit(2),
        "the latest"
    );
}

#[test]
fn a_backend_that_may_not_be_used_is_never_preferred() {
    let mut table = PrefixTable::default();
    table.note(PromptPrefixes([1, 2, 0, 0]), 1);
    assert_eq!(table.choose(PromptPrefixes([1, 2, 0, 0]), |_| None, |_| 4), PrefixChoice::Unknown);
    table.note(PromptPrefixes([1, 3, 0, 0]), 2);
    let only_second = |id| (id == 2).then_some(0);
    assert_eq!(
        table.choose(PromptPrefixes([1, 2, 0, 0]), only_second, |_| 4),
        PrefixChoice::Hit(2)
    );
}

#[test]
fn the_backend_that_served_a_prefix_last_is_kept_and_the_oldest_forgotten() {
    let mut table = PrefixTable::default();
    for backend in [1, 2, 3, 4, 2, 5] {
        table.note(PromptPrefixes([1, 0, 0, 0]), backend);
    }
    assert_eq!(table.0.get(&1), Some(&[5, 2, 4, 3]));
}

#[test]
fn the_prefix_used_least_recently_is_forgotten() {
    let mut table = PrefixTable::default();
    let most = PREFIXES_MAX as u64;
    let forgotten: u64 =
        (1..=most).map(|prefix| table.note(PromptPrefixes([prefix, 0, 0, 0]), 1)).sum();
    assert_eq!(forgotten, 0);
    assert_eq!(
        table.choose(PromptPrefixes([1, 0, 0, 0]), running(&[0]), |_| 1),
        PrefixChoice::Hit(1)
    );
    assert_eq!(table.note(PromptPrefixes([most + 1, 0, 0, 0]), 1), 1);
    assert_eq!(table.0.len(), PREFIXES_MAX);
    assert_eq!(
        table.choose(PromptPrefixes([1, 0, 0, 0]), running(&[0]), |_| 1),
        PrefixChoice::Hit(1),
        "it was used"
    );
    assert_eq!(
        table.choose(PromptPrefixes([2, 0, 0, 0]), running(&[0]), |_| 1),
        PrefixChoice::Unknown
    );
}
