//! Windows and their lengths: a number of seconds, or months and years of the calendar.
//!
//! Blocks of seconds are aligned to the epoch: a day is a day in UTC, a week begins on a Thursday,
//! and a "month" of 30 days begins anywhere. Calendar months are in UTC. Leap seconds and other
//! time zones are not supported.

use crate::units::Time;

const DAY_SECS: u64 = 86_400;

/// The seconds that a window covers, given by its end and its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterWindow {
    /// The first second after the window, since the epoch.
    pub end: u32,
    /// The length in seconds.
    pub seconds: u32,
}

impl CounterWindow {
    /// Time until the window ends, in whole seconds: from 1 to its length.
    #[must_use]
    pub fn left(&self, now: Time) -> u32 {
        let left = u64::from(self.end).saturating_sub(now.second());
        (left as u32).clamp(1, self.seconds.max(1))
    }
}

/// The length of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowLength {
    /// A number of seconds, at least 1: blocks aligned to the epoch.
    Seconds(u32),
    /// A number of calendar months, at least 1: blocks counted from January 1970.
    Months(u32),
}

impl WindowLength {
    /// The window that contains `now`.
    #[must_use]
    pub fn window(self, now: Time) -> CounterWindow {
        let (begin, end) = match self {
            WindowLength::Seconds(seconds) => {
                let seconds = u64::from(seconds.max(1));
                let begin = now.second() / seconds * seconds;
                (begin, begin + seconds)
            }
            WindowLength::Months(months) => {
                let months = u64::from(months.max(1));
                let block = month_of(now.second() / DAY_SECS) / months * months;
                (first_day(block) * DAY_SECS, first_day(block + months) * DAY_SECS)
            }
        };
        let whole = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        CounterWindow { end: whole(end), seconds: whole(end - begin) }
    }
}

/// Days from the epoch until the first of a month; months are counted from January 1970.
fn first_day(month: u64) -> u64 {
    let (year, month) = (1970 + month / 12, month % 12);
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let lengths = [31, 28 + u64::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let before = year - 1;
    let days = before * 365 + before / 4 - before / 100 + before / 400 - DAYS_BEFORE_1970;
    days + lengths.iter().take(month as usize).sum::<u64>()
}

/// Days from 1 January of the year 1 until the epoch.
const DAYS_BEFORE_1970: u64 = 719_162;

/// The month that contains a day, both counted from the epoch.
fn month_of(day: u64) -> u64 {
    // No month is longer than 31 days, so neither guess is too late, and the second is close.
    let guess = day / 31;
    let mut month = guess + (day - first_day(guess)) / 31;
    while first_day(month + 1) <= day {
        month += 1;
    }
    month
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SECOND;

    fn window(length: WindowLength, at: u64) -> (u64, u64) {
        let window = length.window(Time(at * SECOND));
        (u64::from(window.end) - u64::from(window.seconds), window.end.into())
    }

    #[test]
    fn blocks_of_seconds_are_aligned_to_the_epoch() {
        assert_eq!(window(WindowLength::Seconds(60), 2222), (2220, 2280));
        assert_eq!(window(WindowLength::Seconds(1), 2222), (2222, 2223));
        // A Thursday, as the epoch was.
        assert_eq!(window(WindowLength::Seconds(604_800), 1_795_204_800).0 / DAY_SECS % 7, 0);
    }

    #[test]
    fn months_are_those_of_the_calendar() {
        for (at, begin, end) in [
            (0, 0, 31 * DAY_SECS),
            (951_782_400, 949_363_200, 951_868_800),
            (1_709_164_800, 1_706_745_600, 1_709_251_200),
            (1_795_204_800, 1_793_491_200, 1_796_083_200),
            (1_798_761_599, 1_796_083_200, 1_798_761_600),
            (1_798_761_600, 1_798_761_600, 1_801_440_000),
        ] {
            assert_eq!(window(WindowLength::Months(1), at), (begin, end), "{at}");
        }
        assert_eq!(window(WindowLength::Months(12), 1_795_204_800), (1_767_225_600, 1_798_761_600));
    }

    #[test]
    fn every_day_lies_in_its_month() {
        for day in 0..60_000 {
            let month = month_of(day);
            assert!(first_day(month) <= day && day < first_day(month + 1), "{day}");
        }
    }
}
