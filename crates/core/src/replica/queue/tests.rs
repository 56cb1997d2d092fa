//! Messages about a shared queue between replicas: round trips, clocks apart, who is told.

use super::*;
use crate::meter::estimate::{OwnRoute, RouteHash};
use crate::queue::shared::{GrantedVisit, InstanceBeat, RequestCounts, TERM_MAX};
use crate::queue::standing::{Visit, VisitPass, VisitTicket, WaitingRoomEntry};
use crate::queue::{Arrival, DebtFlow, QueuePlace, RefusalCause, RefusedRequest, RequestId};
use crate::replica::wire::PeerFrameError;
use crate::replica::{PeerFrameSender, ReplicaSettings};
use crate::units::{Cost, Nanos, Weight};
use alloc::vec;

const START: Time = Time(1_790_000_000_123_456_789);
const QUEUE: u64 = 77;

fn instance(node: u64, reliable: bool, queues: &[u64]) -> Replica {
    let settings = ReplicaSettings {
        node,
        life: 1,
        name: "n".into(),
        period: Nanos::from_secs(1),
        frame_max: 300,
        reliable,
        cpus_milli: 1_000,
        nodes_max: 8,
    };
    let mut replica = Replica::new(settings, Vec::new(), START);
    replica.set_queues(queues.to_vec());
    replica.handle_up(0, START);
    replica
}

/// Exchanges frames until there are none. Returns the messages for each of both, in their order.
fn exchange(both: [&mut Replica; 2], now: [Time; 2]) -> [Vec<QueueMessage>; 2] {
    let [a, b] = both;
    let mut told = [Vec::new(), Vec::new()];
    let next = |one: &mut Replica| one.poll_transmit().or_else(|| one.poll_queue_transmit());
    loop {
        let frames = [next(b), next(a)];
        if frames.iter().all(Option::is_none) {
            return told;
        }
        for (to, (frame, one)) in frames.into_iter().zip([&mut *a, &mut *b]).enumerate() {
            let Some((link, frame)) = frame else { continue };
            let mut tell = |update: ReplicaUpdate<'_>| {
                if let ReplicaUpdate::Queue { queue: QUEUE, from, messages } = update {
                    assert_eq!(from, 2 - to as u64);
                    told[to].extend(messages);
                }
            };
            one.handle_frame(link, &frame, now[to], &mut tell).expect("a sound frame");
        }
    }
}

fn queue_events(replica: &mut Replica) -> Vec<ReplicaEvent> {
    let is_queue = |event: &ReplicaEvent| {
        use ReplicaEvent::{QueueDown, QueueLost, QueueUp};
        matches!(event, QueueUp { .. } | QueueDown { .. } | QueueLost { .. })
    };
    core::iter::from_fn(|| replica.poll_event()).filter(is_queue).collect()
}

fn up(node: u64) -> ReplicaEvent {
    ReplicaEvent::QueueUp { queue: QUEUE, id: InstanceId { life: 1, node } }
}

fn route(bits: u64) -> RouteHash {
    RouteHash::from_hash(KeyHash::from_bits(bits))
}

fn arrivals(at: Time) -> Vec<Arrival> {
    let plain = Arrival {
        client: KeyHash::from_bits(u64::MAX),
        place: QueuePlace::Credit,
        estimate: Cost(20_000_000),
        is_guess: false,
        route: None,
        own: None,
        weight: Weight::ONE,
        visit: Visit::Unknown,
        accepts_waiting_page: false,
        burns: false,
    };
    let bucket = DebtFlow { limit: u16::MAX, hash: KeyHash::from_bits(5) };
    let ticket = VisitTicket { id: u64::MAX, first_came: at.minus(Nanos::from_secs(600)) };
    let pass = VisitPass { id: 0, stamp: at.plus(Nanos(3_600_000_000_001)) };
    vec![
        plain,
        Arrival { place: QueuePlace::Debt(bucket), is_guess: true, route: Some(route(8)), ..plain },
        Arrival {
            own: Some(OwnRoute { hash: route(9), is_known: false }),
            visit: Visit::Ticket(ticket),
            accepts_waiting_page: true,
            weight: Weight::new(1),
            ..plain
        },
        Arrival {
            place: QueuePlace::Debt(bucket),
            estimate: Cost(queue_wire::AMOUNT_MAX),
            is_guess: true,
            route: Some(route(u64::MAX)),
            own: Some(OwnRoute { hash: route(1), is_known: true }),
            weight: Weight::new(1_000_000),
            visit: Visit::Pass(pass),
            accepts_waiting_page: true,
            burns: true,
            ..plain
        },
    ]
}

/// Messages of every kind, with times around `at`.
fn messages(at: Time) -> Vec<QueueMessage> {
    let id = RequestId(u64::MAX);
    let mut all = vec![
        QueueMessage::Join { running: 0 },
        QueueMessage::Cancel { id: RequestId(1) },
        QueueMessage::Progress { id, cost: Cost(8) },
        QueueMessage::Done { id, cost: Cost::ZERO, worked: None, keeps: true },
        QueueMessage::Done { id, cost: Cost(7), worked: Some((route(3), Nanos(9))), keeps: false },
        QueueMessage::Estimate { route: route(4), cost: Cost(11) },
        QueueMessage::Take { slots: 3 },
        QueueMessage::Return { slots: 1 << 16 },
        QueueMessage::Keep(true),
        QueueMessage::Keep(false),
    ];
    let pass = VisitPass { id: 6, stamp: at.minus(Nanos(1)) };
    for (pass, newcomer_since) in [(None, None), (Some(pass), None), (Some(pass), Some(at))] {
        all.push(QueueMessage::Grant { id, visit: GrantedVisit { pass, newcomer_since } });
    }
    for (is_owner, has_joined, pressure) in
        [(true, false, None), (false, true, Some(Nanos::ZERO)), (true, true, Some(Nanos(5)))]
    {
        let own = RequestCounts { waiting: 0, running: 3 };
        let beat = InstanceBeat {
            term: TERM_MAX,
            is_owner,
            slots: 1,
            has_joined,
            pressure,
            own,
            all: RequestCounts { waiting: u32::MAX, running: 40 },
        };
        all.push(QueueMessage::Beat(beat));
    }
    for cause in [RefusalCause::WaitMax, RefusalCause::LenMax] {
        let retry_after = Nanos::from_secs(3_600);
        all.push(QueueMessage::Refuse(RefusedRequest { id, retry_after, cause }));
    }
    for needs_ticket in [false, true] {
        all.push(QueueMessage::WaitingRoom(WaitingRoomEntry {
            id,
            needs_ticket,
            first_came: at,
            come_back_after: Nanos::from_secs(15),
            expected_wait: Nanos::from_secs(3_600),
        }));
    }
    all.extend(arrivals(at).into_iter().map(|arrival| QueueMessage::Ask { id, arrival }));
    all
}

#[test]
fn every_message_comes_back_and_keeps_its_place() {
    let (mut a, mut b) = (instance(1, true, &[QUEUE]), instance(2, true, &[QUEUE]));
    assert_eq!(exchange([&mut a, &mut b], [START; 2]), [vec![], vec![]]);
    assert_eq!((queue_events(&mut a), queue_events(&mut b)), (vec![up(2)], vec![up(1)]));
    // More than fit into one frame.
    let sent = [messages(written_time(START)), messages(written_time(START))].concat();
    a.queue_frame(2, QUEUE, &sent, START);
    assert!(a.queue_out.len() > 2 && a.queue_out.iter().all(|(_, frame)| frame.len() <= 300));
    // The time in the head is in milliseconds.
    let [_, received] = exchange([&mut a, &mut b], [START; 2]);
    assert_eq!(received, [messages(START), messages(START)].concat());
    let counts = (a.totals().counts.queue_messages_out, b.totals().counts.queue_messages_in);
    assert_eq!((counts, b.totals().refused), ((sent.len() as u64, sent.len() as u64), 0));
}

#[test]
fn times_are_right_by_a_clock_that_is_an_hour_behind() {
    let (mut a, mut b) = (instance(1, true, &[QUEUE]), instance(2, true, &[QUEUE]));
    let behind = START.minus(Nanos::from_secs(3_600));
    exchange([&mut a, &mut b], [START, behind]);
    let later = Nanos::from_secs(10);
    let (now_a, now_b) = (START.plus(later), behind.plus(later));
    a.queue_frame(2, QUEUE, &messages(written_time(now_a)), now_a);
    let [_, told] = exchange([&mut a, &mut b], [now_a, now_b]);
    assert_eq!(told, messages(now_b));
    b.queue_frame(1, QUEUE, &messages(written_time(now_b)), now_b);
    let [told, _] = exchange([&mut a, &mut b], [now_a, now_b]);
    assert_eq!(told, messages(now_a));
}

#[test]
fn amounts_without_use_are_cut_when_they_are_written() {
    let (mut a, mut b) = (instance(1, true, &[QUEUE]), instance(2, true, &[QUEUE]));
    exchange([&mut a, &mut b], [START; 2]);
    let huge = QueueMessage::Done {
        id: RequestId(1),
        cost: Cost(u64::MAX),
        worked: Some((route(1), Nanos(u64::MAX))),
        keeps: false,
    };
    a.queue_frame(2, QUEUE, &[huge, QueueMessage::Join { running: u32::MAX }], START);
    let max = queue_wire::AMOUNT_MAX;
    let cut = QueueMessage::Done {
        id: RequestId(1),
        cost: Cost(max),
        worked: Some((route(1), Nanos(max))),
        keeps: false,
    };
    let [_, told] = exchange([&mut a, &mut b], [START; 2]);
    assert_eq!(told, [cut, QueueMessage::Join { running: 1 << 16 }]);
}

#[test]
fn only_instances_with_the_same_queue_are_told() {
    for (reliable, queues) in [(true, vec![]), (true, vec![QUEUE + 1]), (false, vec![QUEUE])] {
        let (mut a, mut b) = (instance(1, reliable, &[QUEUE]), instance(2, reliable, &queues));
        exchange([&mut a, &mut b], [START; 2]);
        a.queue_frame(2, QUEUE, &messages(START), START);
        assert_eq!(a.poll_queue_transmit(), None);
        assert_eq!((queue_events(&mut a), queue_events(&mut b)), (vec![], vec![]));
    }
}

#[test]
fn it_is_known_why_a_peer_does_not_share_a_queue() {
    use QueueApart::{NoQueue, OtherQueue, OtherVersion};
    for (queues, apart) in
        [(vec![QUEUE], None), (vec![], Some(NoQueue)), (vec![QUEUE + 1], Some(OtherQueue))]
    {
        let (mut a, mut b) = (instance(1, true, &[QUEUE]), instance(2, true, &queues));
        assert_eq!(a.queue_apart(2, QUEUE), None);
        exchange([&mut a, &mut b], [START; 2]);
        assert_eq!(a.queue_apart(2, QUEUE), apart);
        assert_eq!((a.queue_apart(2, QUEUE + 1), a.queue_apart(3, QUEUE)), (None, None));
        a.handle_down(0, true, START);
        assert_eq!(a.queue_apart(2, QUEUE), None);
    }
    let (mut a, mut b) = (instance(1, true, &[QUEUE]), instance(2, true, &[]));
    exchange([&mut a, &mut b], [START; 2]);
    for (version, apart) in [(2, Some(OtherVersion)), (1, None), (2, Some(OtherVersion))] {
        let sender = PeerFrameSender { node: 2, life: 1 };
        let mut writer = PeerFrameWriter::head(PeerFrameKind::State, sender, START);
        let whole = StateAnswerPart::UNASKED;
        content::write_answer(&mut writer, whole);
        writer.group(0, CONTEXT, 1);
        writer.entry(KeyHash::from_bits(QUEUE), version);
        a.handle_frame(0, &writer.done(), START, &mut |_| {}).expect("a sound frame");
        assert_eq!(a.queue_apart(2, QUEUE), apart);
    }
}

#[test]
fn a_queue_can_be_shared_later_and_no_longer() {
    let (mut a, mut b) = (instance(1, true, &[QUEUE]), instance(2, true, &[]));
    exchange([&mut a, &mut b], [START; 2]);
    let tick = |a: &mut Replica, b: &mut Replica| {
        let now = a.poll_timeout().max(b.poll_timeout());
        a.handle_timeout(now);
        b.handle_timeout(now);
        exchange([a, b], [now; 2]);
        [queue_events(a), queue_events(b)]
    };
    b.set_queues(vec![QUEUE]);
    assert_eq!(tick(&mut a, &mut b), [vec![up(2)], vec![up(1)]]);
    assert_eq!(tick(&mut a, &mut b), [vec![], vec![]]);
    b.set_queues(vec![]);
    let gone = ReplicaEvent::QueueDown { queue: QUEUE, node: 2, is_gone: true };
    assert_eq!(tick(&mut a, &mut b), [vec![gone], vec![]]);
}

#[test]
fn the_end_of_a_link_says_whether_the_instance_has_ended() {
    for is_gone in [false, true] {
        let (mut a, mut b) = (instance(1, true, &[QUEUE]), instance(2, true, &[QUEUE]));
        exchange([&mut a, &mut b], [START; 2]);
        queue_events(&mut a);
        a.queue_frame(2, QUEUE, &[QueueMessage::Keep(true)], START);
        a.handle_down(0, is_gone, START);
        assert_eq!(
            queue_events(&mut a),
            [ReplicaEvent::QueueDown { queue: QUEUE, node: 2, is_gone }]
        );
        assert_eq!(a.poll_queue_transmit(), None);
        // Over another link it comes back.
        b.handle_down(0, false, START);
        a.handle_up(3, START);
        b.handle_up(3, START);
        exchange([&mut a, &mut b], [START; 2]);
        assert_eq!(queue_events(&mut a), [up(2)]);
    }
}

#[test]
fn a_second_link_of_an_instance_closes_the_first() {
    let (mut a, mut b) = (instance(1, true, &[QUEUE]), instance(2, true, &[QUEUE]));
    exchange([&mut a, &mut b], [START; 2]);
    queue_events(&mut a);
    // Another one speaks as the same instance, and ends. The first connects again.
    let mut thief = instance(2, true, &[QUEUE]);
    thief.handle_down(0, true, START);
    a.handle_up(3, START);
    thief.handle_up(3, START);
    exchange([&mut a, &mut thief], [START; 2]);
    assert_eq!(queue_events(&mut a), [up(2), ReplicaEvent::QueueLost { link: 0 }]);
    a.handle_down(0, false, START);
    b.handle_down(0, true, START);
    a.handle_down(3, true, START);
    let down = ReplicaEvent::QueueDown { queue: QUEUE, node: 2, is_gone: true };
    assert_eq!(queue_events(&mut a), [down]);
    a.handle_up(4, START);
    b.handle_up(4, START);
    exchange([&mut a, &mut b], [START; 2]);
    assert_eq!(queue_events(&mut a), [up(2)]);
}

#[test]
fn a_link_is_closed_when_messages_on_it_are_lost() {
    let (mut a, mut b) = (instance(1, true, &[QUEUE]), instance(2, true, &[QUEUE]));
    exchange([&mut a, &mut b], [START; 2]);
    queue_events(&mut b);
    queue_events(&mut a);
    let mut frame = None;
    for _ in 0..=REPLICA_BOUNDS.queue_frames_max {
        a.queue_frame(2, QUEUE, &[QueueMessage::Keep(true)], START);
        frame = a.poll_queue_transmit();
        let result = b.handle_frame(0, &frame.clone().expect("a frame").1, START, &mut |_| {});
        if result.is_err() {
            assert_eq!(result, Err(PeerFrameError::Flood));
            assert_eq!(queue_events(&mut b), [ReplicaEvent::QueueLost { link: 0 }]);
        }
    }
    assert_eq!(b.totals().refused, 1);
    // In another second it may send again, and other frames were never refused.
    let later = START.plus(Nanos::from_secs(1));
    let (_, bytes) = frame.expect("a frame");
    b.handle_frame(0, &bytes, later, &mut |_| {}).expect("few frames");
    let cut = &bytes[..bytes.len() - 1];
    assert_eq!(b.handle_frame(0, cut, later, &mut |_| {}), Err(PeerFrameError::Broken));
    assert_eq!(queue_events(&mut b), [ReplicaEvent::QueueLost { link: 0 }]);
    (0..=REPLICA_BOUNDS.queue_out_max)
        .for_each(|_| a.queue_frame(2, QUEUE, &[QueueMessage::Keep(true)], START));
    assert_eq!(queue_events(&mut a), [ReplicaEvent::QueueLost { link: 0 }]);
}

#[test]
fn values_that_cannot_be_are_refused() {
    let written = |message: QueueMessage| {
        let mut writer = PeerFrameWriter::part();
        queue_wire::write_message(&mut writer, &message, START);
        writer.done()
    };
    let read = |bytes: &[u8]| {
        QueueMessages::checked(super::super::wire::PeerFrameReader::new(bytes)).map(|_| ())
    };
    for message in messages(START) {
        let bytes = written(message);
        assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{} bytes", bytes.len());
        assert_eq!(read(&bytes), Ok(()));
        for cut in 1..bytes.len() {
            assert_eq!(read(&bytes[..cut]), Err(PeerFrameError::Broken), "{message:?}");
        }
    }
    let arrival = Arrival { client: KeyHash::from_bits(1), ..arrivals(START)[0] };
    let ask = written(QueueMessage::Ask { id: RequestId(1), arrival });
    let edited = |place: usize, value: u8| {
        let mut bytes = ask.clone();
        bytes[place] = value;
        read(&bytes)
    };
    assert_eq!(edited(0, 3), Ok(()));
    for (place, value) in [(0, 0), (0, 13), (2, 16), (2, 96), (3, 0), (10, 0x80)] {
        assert_eq!(edited(place, value), Err(PeerFrameError::Broken), "{place}: {value}");
    }
    // Slots of none and too many, too many requests, a weight of zero and of too much, a limit of
    // more than 16 bits.
    for bytes in [
        &[1, 0, 1, 0, 0, 0, 0, 0][..],
        &[1, 8, 1, 1, 0, 0, 0, 0],
        &[1, 0, 1, 1, 0, 0, 0, 0x80, 0x80, 0x80, 0x80, 0x10],
        &[2, 0x81, 0x80, 4],
        &[3, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0],
        &[3, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0xc1, 0x84, 0x3d],
        &[3, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0x80, 0x80, 4, 1, 0, 0, 0, 0, 0, 0, 0],
        &[10, 1, 1, 2],
        &[12, 2],
    ] {
        assert_eq!(read(bytes), Err(PeerFrameError::Broken), "{bytes:?}");
    }
}

#[test]
fn a_frame_before_the_hello_of_its_sender_is_refused() {
    let mut b = instance(2, true, &[QUEUE]);
    let sender = PeerFrameSender { node: 1, life: 1 };
    let mut writer = PeerFrameWriter::head(PeerFrameKind::Queue, sender, START);
    writer.word(QUEUE);
    let bytes = writer.done();
    let refused = |replica: &mut Replica| {
        replica.handle_frame(0, &bytes, START, &mut |update| panic!("{update:?}"))
    };
    assert_eq!(refused(&mut b), Err(PeerFrameError::Stranger));
    assert_eq!(refused(&mut instance(3, false, &[])), Err(PeerFrameError::Broken));
}
