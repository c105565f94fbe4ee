# A short gang passes one that would delay the one with a reservation.
cluster 8 nodes x 8 gpus, 4 per leaf
0m submit a nodes=6 limit=10m
1m submit b nodes=8 limit=10m
1m submit d nodes=2 limit=30m
1m submit c nodes=2 limit=5m
2m show
