use super::*;

fn head(limits: u16) -> SnapshotHead {
    SnapshotHead { seed: KeySeed([7; 16]), written: Time(1_790_000_000_000_000_000), limits }
}

fn debt() -> SnapshotLimit {
    let rate = "1/s".parse().expect("a rate");
    SnapshotLimit {
        door: "proxy".into(),
        name: "ip".into(),
        by: "ip/32/64".into(),
        unit: LimitUnit::Cpu,
        counting: SnapshotAlgorithm::Bucket(Algorithm::Debt(DebtBucket::new(rate, Cost(5)))),
    }
}

/// One limit of each algorithm.
fn each() -> Vec<SnapshotLimit> {
    let hits = |name: &str, algorithm| SnapshotLimit {
        name: name.into(),
        by: "all".into(),
        unit: LimitUnit::Hits,
        counting: SnapshotAlgorithm::Bucket(algorithm),
        ..debt()
    };
    let second = Nanos::from_secs(1);
    vec![
        debt(),
        hits(
            "sliding",
            Algorithm::Sliding(
                SlidingWindow::new(second, Cost(3)).expect("a window").rounded(Cost(7)),
            ),
        ),
        hits("fixed", Algorithm::Fixed(FixedWindow::new(10, 60).expect("a window"))),
        hits("grid", Algorithm::Grid(GridBucket::new("3/m".parse().expect("a pace"), 10))),
        hits("history", Algorithm::History(RequestHistory::new(2, second).expect("a history"))),
        SnapshotLimit { unit: LimitUnit::Hits, counting: SnapshotAlgorithm::Windows, ..debt() },
        SnapshotLimit { unit: LimitUnit::Hits, counting: SnapshotAlgorithm::Clients, ..debt() },
    ]
}

type Buckets = Vec<(u64, Vec<u64>)>;

fn written(limits: &[(SnapshotLimit, Buckets)]) -> Vec<u8> {
    let count = u16::try_from(limits.len()).expect("few");
    let mut writer = SnapshotWriter::begin(Vec::new(), head(count)).expect("memory");
    for (kept, buckets) in limits {
        writer.limit(kept).expect("memory");
        for (hash, state) in buckets {
            writer.bucket(KeyHash::from_bits(*hash), state).expect("memory");
        }
        writer.end_limit().expect("memory");
    }
    writer.finish().expect("memory")
}

fn all(bytes: &[u8]) -> Result<Vec<(SnapshotLimit, Buckets)>, SnapshotReadError> {
    let mut limits: Vec<(SnapshotLimit, Buckets)> = Vec::new();
    read(bytes, |seen| match seen {
        SnapshotRecord::Limit(kept) => limits.push((kept.clone(), Vec::new())),
        SnapshotRecord::Bucket(hash, state) => {
            let (_, buckets) = limits.last_mut().expect("a limit comes first");
            buckets.push((hash.bits(), state.to_vec()));
        }
    })?;
    Ok(limits)
}

#[test]
fn the_bytes_are_these() {
    let bytes = written(&[(debt(), vec![(0x0102, vec![0x0a0b])])]);
    let golden = [
        "45 56 45 4e 4b 45 45 4c 02 00 01 00 00 00 00 00",
        "07 07 07 07 07 07 07 07 07 07 07 07 07 07 07 07",
        "00 00 f3 23 84 5b d7 18",
        "05 70 72 6f 78 79 02 69 70 08 00 69 70 2f 33 32 2f 36 34",
        "00 01 01 00 00 00 00 00 00 f0 3f 05 00 00 00 00 00 00 00",
        "00 00 00 00 00 00 00 00",
        "01 00 00 00 02 01 00 00 00 00 00 00 0b 0a 00 00 00 00 00 00",
        "00 00 00 00",
    ];
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ");
    let (body, sum) = bytes.split_at(bytes.len() - 4);
    assert_eq!(hex(body), golden.join(" "));
    assert_eq!(hex(sum), "4e a5 0c 7b");
}

#[test]
fn what_is_written_is_read_back() {
    let buckets = |kept: &SnapshotLimit, count: u64| -> Buckets {
        let words = kept.counting.words() as u64;
        (1..=count).map(|n| (n * 3, (0..words).map(|word| n * 1_000 + word).collect())).collect()
    };
    for count in [0, 1, 1_023, 1_024, 1_025, 3_000] {
        let limits: Vec<_> = each().into_iter().map(|k| (k.clone(), buckets(&k, count))).collect();
        assert_eq!(all(&written(&limits)).expect("whole"), limits);
    }
    assert_eq!(all(&written(&[])).expect("whole"), []);
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_refused() {
    let bytes = written(&[(debt(), vec![(1, vec![2]), (3, vec![4])])]);
    for length in 0..bytes.len() {
        assert!(matches!(all(&bytes[..length]), Err(SnapshotReadError::Short)), "{length}");
    }
}

#[test]
fn a_flipped_bit_anywhere_is_noticed() {
    let bytes = written(&each().into_iter().map(|k| (k, Vec::new())).collect::<Vec<_>>());
    for at in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[at / 8] ^= 1 << (at % 8);
        assert!(all(&bytes).is_err(), "bit {at}");
    }
}

#[test]
fn what_is_wrong_is_said() {
    let told = |bytes: &[u8]| all(bytes).map(drop).expect_err("refused").to_string();
    let good = written(&[(debt(), vec![(1, vec![2])])]);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        told(&bytes)
    };
    assert_eq!(told(b"{\"json\": true}"), "it is not a snapshot of evenkeel");
    assert_eq!(with(8, 3), "its version is 3, and only 1 to 2 are supported");
    assert_eq!(with(good.len() - 1, 0), "it is damaged: its checksum is wrong");
    assert!(with(60, 9).contains("an algorithm is invalid"), "{}", with(60, 9));
    assert!(with(61, 2).contains("the width of a bucket is invalid"), "{}", with(61, 2));
    let longer = [good.as_slice(), b"x"].concat();
    assert_eq!(told(&longer), "it is damaged: data after its end is invalid");
}

/// Makes a snapshot with a valid checksum, so that the checks behind it are reached.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut sum = Hasher::new();
    sum.update(bytes);
    [bytes, &sum.finalize().to_le_bytes()].concat()
}

#[test]
fn fuzz_any_bytes_are_a_snapshot_or_refused() {
    evenkeel_fuzz::fuzz().for_each(|bytes: &[u8]| {
        for bytes in [bytes.to_vec(), sealed(bytes)] {
            if let Ok(limits) = all(&bytes) {
                assert_eq!(all(&written(&limits)).expect("whole"), limits);
            }
        }
    });
}

/// A valid snapshot with some bytes changed, which random bytes would never reach.
#[test]
fn fuzz_any_change_of_a_snapshot_is_refused_or_read() {
    let limits: Vec<_> = each().into_iter().map(|kept| (kept, Vec::new())).collect();
    let whole = written(&limits);
    let body = whole[..whole.len() - 4].to_vec();
    evenkeel_fuzz::fuzz().with_type::<Vec<(u16, u8)>>().for_each(|changes| {
        let mut bytes = body.clone();
        for (at, byte) in changes {
            let at = usize::from(*at) % bytes.len();
            bytes[at] = *byte;
        }
        if let Ok(limits) = all(&sealed(&bytes)) {
            assert_eq!(all(&written(&limits)).expect("whole"), limits);
        }
    });
}
