# A running gang gives up nodes and another one gets them.
cluster 8 nodes x 8 gpus, 4 per leaf
0m submit a nodes=4 limit=30m elastic=2..4
1m submit b nodes=4 limit=30m
2m submit c nodes=2 limit=30m
3m show
4m left a n[3-4]
5m show
