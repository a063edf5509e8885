//! What may happen in a history, and how often.

use proptest::prelude::*;
use tests::reference::{Act, Content};

use super::{LANES, TASKS};

/// What happens next. Tasks, lanes and tokens are numbers, made to fit when it happens.
#[derive(Clone, Debug)]
pub enum Action {
    One(Call),
    AtOnce(Call, Call),
    Advance(u32),
    DeleteHalf(u64),
    RestartRedis,
}

#[derive(Clone, Debug)]
pub enum Call {
    Add(Vec<(usize, Content)>),
    AddAgain(usize),
    Cancel {
        task: usize,
        by_get: bool,
    },
    Take(usize),
    Poll {
        lane: usize,
        most: usize,
        seconds: i64,
    },
    PollType {
        most: usize,
        seconds: i64,
    },
    Ack(Vec<usize>),
    Nack {
        token: usize,
        delay: Option<i64>,
        permanent: bool,
    },
    Extend {
        token: usize,
        seconds: i64,
    },
    Reschedule {
        task: usize,
        delay: i64,
    },
    Redrive(usize),
    Get(usize),
    Refresh,
    Recover,
    Dispatch,
    /// A `GET` of this path.
    Look(&'static str),
    FlushAll,
    ForgetScripts,
}

fn contents() -> impl Strategy<Value = Content> {
    let delay =
        prop_oneof![4 => Just(0i64), 2 => Just(1_000), 2 => Just(20_000), 1 => Just(299_999), 1 => Just(4_000_000)];
    let act = prop_oneof![2 => Just(Act::Succeed), 2 => Just(Act::Retry), 1 => Just(Act::Later(90_000)), 1 => Just(Act::GiveUp)];
    let retention = prop_oneof![4 => Just(604_800_000i64), 1 => Just(2_500)];
    (0..LANES, delay, 1..4u32, prop_oneof![Just(0i64), Just(5_000)], retention, act).prop_map(
        |(lane, delay, max_attempts, backoff, retention, act)| Content {
            lane,
            delay,
            max_attempts,
            backoff,
            retention,
            act,
        },
    )
}

fn calls() -> impl Strategy<Value = Call> {
    let task = || 0..TASKS;
    let seconds = || prop_oneof![3 => Just(30i64), 1 => Just(1), 1 => Just(60), 1 => Just(400)];
    let token = || 0..6usize;
    let delay = || prop_oneof![Just(0i64), Just(1_000), Just(400_000)];
    prop_oneof![
        6 => prop::collection::vec((task(), contents()), 1..4).prop_map(Call::Add),
        2 => task().prop_map(Call::AddAgain),
        3 => (task(), any::<bool>()).prop_map(|(task, by_get)| Call::Cancel { task, by_get }),
        2 => (0..2usize).prop_map(Call::Take),
        8 => (0..2usize, 1..5usize, seconds()).prop_map(|(lane, most, seconds)| Call::Poll { lane, most, seconds }),
        3 => (1..5usize, seconds()).prop_map(|(most, seconds)| Call::PollType { most, seconds }),
        4 => prop::collection::vec(token(), 1..4).prop_map(Call::Ack),
        4 => (token(), prop::option::of(delay()), prop::bool::weighted(0.2))
            .prop_map(|(token, delay, permanent)| Call::Nack { token, delay, permanent }),
        2 => (token(), seconds()).prop_map(|(token, seconds)| Call::Extend { token, seconds }),
        2 => (task(), delay()).prop_map(|(task, delay)| Call::Reschedule { task, delay }),
        2 => task().prop_map(Call::Redrive),
        2 => task().prop_map(Call::Get),
        3 => Just(Call::Refresh),
        3 => Just(Call::Recover),
        3 => Just(Call::Dispatch),
        1 => Just(Call::FlushAll),
        1 => Just(Call::ForgetScripts),
    ]
}

pub fn histories() -> impl Strategy<Value = Vec<Action>> {
    let ms = || prop_oneof![Just(1u32), Just(1_000), Just(5_000), Just(30_000), Just(90_000), Just(310_000)];
    // After calls at once Redis may be wrong for a while, so only a calm history shows what it must know.
    let calm = prop_oneof![4 => calls().prop_map(Action::One), 1 => ms().prop_map(Action::Advance)];
    let wild = prop_oneof![
        20 => calls().prop_map(Action::One),
        8 => (calls(), calls()).prop_map(|(one, other)| Action::AtOnce(one, other)),
        8 => ms().prop_map(Action::Advance),
        2 => any::<u64>().prop_map(Action::DeleteHalf),
        1 => prop::bool::weighted(0.3).prop_map(|restart| match restart {
            true => Action::RestartRedis,
            false => Action::One(Call::FlushAll),
        }),
    ];
    prop_oneof![
        2 => prop::collection::vec(calm, 1..40),
        3 => prop::collection::vec(wild, 1..40),
    ]
}
